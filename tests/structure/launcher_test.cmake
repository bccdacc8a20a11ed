# cmake -D SOURCE_DIR= -D WORK_DIR= -D CXX= -D TOOLS=none|ccache|nvcc|nvcc_and_ccache -P launcher_test.cmake
# Builds launchers/ under a PATH of its own, on which stands what a build needs and of ccache and nvcc
# what TOOLS names.

cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR}/bin)

function(put_on_path tool)
  find_program(found ${tool} NO_CACHE)
  if(NOT found)
    message(FATAL_ERROR "skipped: this machine has no ${tool}")
  endif()
  file(WRITE ${WORK_DIR}/bin/${tool} "#!/bin/sh\nexec ${found} \"$@\"\n")
  file(CHMOD ${WORK_DIR}/bin/${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

set(expected_ccache "GRADWIRE_CCACHE-NOTFOUND")
set(expected_nvcc "NOTFOUND")
foreach(tool IN ITEMS ccache nvcc)
  if(TOOLS MATCHES ${tool})
    put_on_path(${tool})
    set(expected_${tool} "${WORK_DIR}/bin/${tool}")
  endif()
endforeach()
# nvcc starts the host's compiler, and the host's compiler its assembler and linker, by their names.
foreach(tool IN ITEMS sh sed uname g++ gcc c++ as ld ar ranlib make cat rm mkdir touch echo env dirname)
  put_on_path(${tool})
endforeach()

set(environment ${CMAKE_COMMAND} -E env --unset=CUDACXX --unset=CUDA_PATH --unset=CXX
    PATH=${WORK_DIR}/bin CCACHE_DIR=${WORK_DIR}/cache)
execute_process(COMMAND ${environment} ${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/structure/launchers
                        -B ${WORK_DIR}/build -G "Unix Makefiles" -DGRADWIRE_SOURCE_DIR=${SOURCE_DIR}
                        -DCMAKE_CXX_COMPILER=${CXX}
                        -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF -DCMAKE_MAKE_PROGRAM=${WORK_DIR}/bin/make
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "configuring failed:\n${output}")
endif()
foreach(tool IN ITEMS ccache nvcc)
  string(FIND "${output}" "${tool}=${expected_${tool}}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "expected ${tool}=${expected_${tool}} in:\n${output}")
  endif()
endforeach()
execute_process(COMMAND ${environment} ${CMAKE_COMMAND} --build ${WORK_DIR}/build
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "building failed:\n${output}")
endif()
if(TOOLS MATCHES nvcc)
  string(FIND "${output}" "ptxas info" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "expected the report of ptxas in:\n${output}")
  endif()
endif()
