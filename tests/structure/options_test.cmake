# cmake -D SOURCE_DIR= -D WORK_DIR= -D CXX= -D GENERATOR= -P options_test.cmake
# Configures small variants of the project and reads what they print.

cmake_minimum_required(VERSION 3.25)
set(everything_off)
foreach(option IN ITEMS CUDA GLOO MPI NCCL PLANNER PYTHON TESTS BENCH)
  list(APPEND everything_off -DGRADWIRE_${option}=OFF)
endforeach()

# configure(<name> <source> [option...]): sets `result` and `output`.
macro(configure name source)
  file(REMOVE_RECURSE ${WORK_DIR}/${name})
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${source} -B ${WORK_DIR}/${name} -G ${GENERATOR}
                          -DCMAKE_CXX_COMPILER=${CXX} ${everything_off} ${ARGN}
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake wraps its messages
endmacro()

macro(expect_success name)
  if(NOT result EQUAL 0)
    message(SEND_ERROR "${name}: configuring failed:\n${output}")
  endif()
endmacro()

macro(expect_failure name)
  if(result EQUAL 0)
    message(SEND_ERROR "${name}: configuring succeeded, must fail")
  endif()
endmacro()

macro(expect_text name text)
  string(FIND "${output}" "${text}" at)
  if(at EQUAL -1)
    message(SEND_ERROR "${name}: expected '${text}' in:\n${output}")
  endif()
endmacro()

configure(off ${SOURCE_DIR})
expect_success(off)
foreach(option IN ITEMS CUDA GLOO MPI NCCL PLANNER PYTHON TESTS BENCH)
  expect_text(off "gradwire: ${option} off (asked)")
endforeach()

configure(without_mpi ${SOURCE_DIR} -DGRADWIRE_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
expect_failure(without_mpi)
expect_text(without_mpi "GRADWIRE_MPI=ON, but no MPI was found")

configure(without_openssl ${SOURCE_DIR} -DCMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON)
expect_failure(without_openssl)
expect_text(without_openssl "OpenSSL's libcrypto was not found (Debian: libssl-dev)")

configure(missing ${SOURCE_DIR} -DGRADWIRE_CUDA=ON -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
expect_failure(missing)
expect_text(missing "GRADWIRE_CUDA=ON, but no CUDA toolkit")

configure(automatic ${SOURCE_DIR} -DGRADWIRE_CUDA=AUTO -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
expect_success(automatic)
expect_text(automatic "gradwire: CUDA off (no CUDA toolkit")

configure(misspelt ${SOURCE_DIR} -DGRADWIRE_GLOO=MAYBE)
expect_failure(misspelt)
expect_text(misspelt "GRADWIRE_GLOO is 'MAYBE', must be AUTO, ON or OFF")

file(WRITE ${WORK_DIR}/parent/CMakeLists.txt "
cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES C CXX)
add_subdirectory(${SOURCE_DIR} gradwire)
file(WRITE \${CMAKE_CURRENT_BINARY_DIR}/main.cc \"#include <gradwire/kernels/core/stream.h>\\nint main() {}\\n\")
add_executable(app \${CMAKE_CURRENT_BINARY_DIR}/main.cc)
target_link_libraries(app PRIVATE gradwire::comm gradwire::optimizers)
if(CMAKE_BUILD_TYPE)
  message(FATAL_ERROR \"gradwire chose the build type \${CMAKE_BUILD_TYPE} of its parent\")
endif()
")
configure(subproject ${WORK_DIR}/parent)
expect_success(subproject)
