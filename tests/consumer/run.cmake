# cmake -D BUILD_DIR= -D SOURCE_DIR= -D WORK_DIR= -D CXX= -D BUILD_TYPES= -D SANITIZE= -D GENERATOR=
#       -D WHOLE= -P run.cmake
# Installs the build into a fresh prefix, moves the prefix, builds the consumer against it in each of
# the build types, and runs it. WHOLE: also what does not depend on the compiler.

cmake_minimum_required(VERSION 3.25)
if(NOT CXX)
  message("skipped: this machine has no such compiler")
  return()
endif()
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})

# Sets `output`.
function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect what text)
  if(NOT output MATCHES "${text}")
    message(FATAL_ERROR "${what} says:\n${output}\nexpected '${text}'")
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
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${flags})
foreach(type IN LISTS BUILD_TYPES)
  set(build ${WORK_DIR}/${type})
  step(${configure} -DCMAKE_BUILD_TYPE=${type} -B ${build})
  step(${CMAKE_COMMAND} --build ${build} --parallel 2)
  step(${build}/consumer)
  step(${build}/consumer_static)
endforeach()
if(NOT WHOLE)
  return()
endif()

# Beside a program that links the static libraries there is no plug-in: it is told where to give one.
file(READ ${build}/has_gloo has_gloo)
file(READ ${build}/plugin_dir plugin_dir)
if(has_gloo)
  step(${build}/consumer_static plugin_path=)
  expect("a static program" "not found, looked for ${build}/libgradwire_gloo.so,.*target gradwire_gloo.*plugin_path")
  step(${build}/consumer_static plugin_path=${plugin_dir})
  expect("a static program with plugin_path" "^gloo: ''$")
  step(${build}/consumer plugin_path=)
  expect("a program" "^gloo: ''$")
endif()

# The same object linked as pkg-config says.
find_program(pkgconfig NAMES pkg-config pkgconf)
if(pkgconfig)
  file(GLOB pc_folder ${prefix}/lib*/pkgconfig ${prefix}/lib/*/pkgconfig)
  set(ENV{PKG_CONFIG_PATH} ${pc_folder})
  file(READ ${build}/main_object object)
  foreach(suffix IN ITEMS "" -static)
    step(${pkgconfig} --cflags --libs gradwire-optimizers${suffix} gradwire-comm${suffix})
    expect("pkg-config" "-I${prefix}/include|-I${prefix}/lib.*/\\.\\./.*include")
    separate_arguments(words UNIX_COMMAND "${output}")
    step(${CXX} ${flags} ${object} ${words} -Wl,-rpath,${plugin_dir} -o ${build}/by_pkgconfig${suffix})
    step(${build}/by_pkgconfig${suffix})
  endforeach()
else()
  message("no pkg-config here: its files are not looked at")
endif()

# The project that README.md shows, around the program that it shows.
set(shown ${SOURCE_DIR}/../../examples)
file(MAKE_DIRECTORY ${WORK_DIR}/shown)
file(COPY_FILE ${shown}/minimal.cc ${WORK_DIR}/shown/train.cc)
file(COPY_FILE ${shown}/project.cmake ${WORK_DIR}/shown/CMakeLists.txt)
list(TRANSFORM configure REPLACE "^${SOURCE_DIR}$" ${WORK_DIR}/shown OUTPUT_VARIABLE configure_shown)
step(${configure_shown} -DCMAKE_BUILD_TYPE=${type} -B ${WORK_DIR}/shown/build)
step(${CMAKE_COMMAND} --build ${WORK_DIR}/shown/build)
step(${WORK_DIR}/shown/build/train)

function(expect_refused what text)
  execute_process(COMMAND ${configure} -DCMAKE_BUILD_TYPE=${type} -B ${WORK_DIR}/refused ${ARGN}
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake wraps its messages
  file(REMOVE_RECURSE ${WORK_DIR}/refused)
  if(result EQUAL 0)
    message(FATAL_ERROR "${what} was not refused:\n${output}")
  endif()
  expect("${what}" "${text}")
endfunction()
expect_refused("version 0.2" "requested version \"0.2\"" -DGRADWIRE_WANTED=0.2)
expect_refused("a component that is not there"
               "no component 'teleport' in .*; it has: kernels;optimizers;comm"
               -DGRADWIRE_COMPONENTS=teleport)
