# cmake -D BUILD_DIR= -D SOURCE_DIR= -D WORK_DIR= -D CXX= -D BUILD_TYPE= -D SANITIZE= -D GENERATOR=
#       -P run.cmake
# Installs the build into a fresh prefix, moves the prefix, builds the consumer against it, runs it.

cmake_minimum_required(VERSION 3.25)
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})

function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
endfunction()

step(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/staging --component development)
# Moved: nothing installed may depend on where it was installed.
file(RENAME ${WORK_DIR}/staging ${prefix})

set(flags)
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
set(configure ${CMAKE_COMMAND} -S ${SOURCE_DIR} -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DCMAKE_CXX_FLAGS=${flags})
step(${configure} -B ${WORK_DIR}/build)
step(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
step(${WORK_DIR}/build/consumer)

# The project that README.md shows, around the program that it shows.
set(shown ${SOURCE_DIR}/../../examples)
file(MAKE_DIRECTORY ${WORK_DIR}/shown)
file(COPY_FILE ${shown}/minimal.cc ${WORK_DIR}/shown/train.cc)
file(COPY_FILE ${shown}/project.cmake ${WORK_DIR}/shown/CMakeLists.txt)
list(TRANSFORM configure REPLACE "^${SOURCE_DIR}$" ${WORK_DIR}/shown OUTPUT_VARIABLE configure_shown)
step(${configure_shown} -B ${WORK_DIR}/shown/build)
step(${CMAKE_COMMAND} --build ${WORK_DIR}/shown/build)
step(${WORK_DIR}/shown/build/train)

execute_process(COMMAND ${configure} -B ${WORK_DIR}/newer -DGRADWIRE_WANTED=0.2
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0 OR NOT output MATCHES "requested version \"0.2\"")
  message(FATAL_ERROR "version 0.2 was not refused:\n${output}")
endif()
