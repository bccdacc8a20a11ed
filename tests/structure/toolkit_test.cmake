# Finds a CUDA toolkit without CUDA::nvToolsExt by a module that says of it what Debian's CMake does.
#   cmake -D SOURCE_DIR=... -D WORK_DIR=... -P toolkit_test.cmake

file(REMOVE_RECURSE ${WORK_DIR})
file(WRITE ${WORK_DIR}/modules/FindCUDAToolkit.cmake [[
add_library(CUDA::cudart_static INTERFACE IMPORTED)
if(CMAKE_MINIMUM_REQUIRED_VERSION VERSION_GREATER_EQUAL 3.25)
  set_property(TARGET CUDA::nvToolsExt PROPERTY DEPRECATION "superseded")
endif()
set(CUDAToolkit_FOUND TRUE)
]])
file(WRITE ${WORK_DIR}/CMakeLists.txt "
cmake_minimum_required(VERSION 3.25)
project(finds_a_toolkit LANGUAGES NONE)
list(PREPEND CMAKE_MODULE_PATH ${WORK_DIR}/modules)
include(${SOURCE_DIR}/cmake/gradwireCudaToolkit.cmake)
if(NOT TARGET CUDA::cudart_static OR NOT CMAKE_MINIMUM_REQUIRED_VERSION STREQUAL \"3.25\")
  message(FATAL_ERROR \"CMake \${CMAKE_MINIMUM_REQUIRED_VERSION}, expected a toolkit and 3.25\")
endif()
")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK_DIR} -B ${WORK_DIR}/build RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "no toolkit was found")
endif()
