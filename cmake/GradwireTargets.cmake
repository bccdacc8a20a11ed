# How a layer of the library and a test are declared.

find_program(GRADWIRE_CCACHE ccache)
if(GRADWIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${GRADWIRE_CCACHE})
endif()
if(GRADWIRE_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${GRADWIRE_CCACHE})
endif()

# Flags of every target of this project; none of them reaches users.
function(gradwire_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                         # Bits are compared across machines: no fused multiply-add anywhere.
                         -ffp-contract=off)
  if(GRADWIRE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(GRADWIRE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${GRADWIRE_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=all)
    target_compile_definitions(${target} PRIVATE GRADWIRE_NO_CLONES)
    # BUILD_INTERFACE: an exported target does not force a sanitizer on those who link it.
    target_link_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${GRADWIRE_SANITIZE}>)
  endif()
endfunction()

# gradwire_precompile(<target> <group>): cmake/precompiled/<group>.h, compiled once for all targets of
# the group, which share their flags.
function(gradwire_precompile target group)
  if(GRADWIRE_FAST_COMPILE AND NOT TARGET gradwire_${group}_precompiled)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled/${group}.cc CONTENT "" @ONLY)
    add_library(gradwire_${group}_precompiled OBJECT EXCLUDE_FROM_ALL
                ${PROJECT_BINARY_DIR}/precompiled/${group}.cc)
    gradwire_group_options(gradwire_${group}_precompiled ${group})
    # By a name that is the same in every checkout: ccache compares what includes it.
    target_include_directories(gradwire_${group}_precompiled PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
    target_precompile_headers(gradwire_${group}_precompiled PRIVATE <precompiled/${group}.h>)
  endif()
  gradwire_group_options(${target} ${group})
  if(NOT GRADWIRE_FAST_COMPILE)
    return()
  endif()
  # Tests are compiled one by one: a change of one is then a matter of seconds.
  if(NOT group STREQUAL "tests")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
  endif()
  target_precompile_headers(${target} REUSE_FROM gradwire_${group}_precompiled)
endfunction()

# The flags of a group (standard: the layers, bindings: the Python module, tests).
function(gradwire_group_options target group)
  gradwire_compile_options(${target})
  if(group STREQUAL "standard")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    # Loops are vectorised; nothing reads errno of a math call or a floating-point exception flag.
    target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O3>
                           -fno-math-errno -fno-trapping-math)
  elseif(group STREQUAL "bindings")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
                          CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    target_link_libraries(${target} PRIVATE pybind11::headers Python::Module)
    # It calls and is called; the loops are in the layers. -O2 takes half as long again to compile.
    target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  else()
    target_link_libraries(${target} PRIVATE GTest::gtest)
    target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  endif()
endfunction()

# Headers are included as gradwire/<layer>/..., in the tree as when installed: one link per layer.
set(GRADWIRE_INCLUDE_DIR ${PROJECT_BINARY_DIR}/include)
function(gradwire_include_link layer)
  file(MAKE_DIRECTORY ${GRADWIRE_INCLUDE_DIR}/gradwire)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${layer} ${GRADWIRE_INCLUDE_DIR}/gradwire/${layer} SYMBOLIC)
endfunction()

# gradwire_layer(<name> SOURCES ... [DEPENDS layer ...] [LIBRARIES target ...])
# Defines gradwire_<name> (shared, alias gradwire::<name>) and gradwire_<name>_static (alias
# gradwire::<name>_static) from the same objects, both installed. In a wheel build (SKBUILD), which
# links the static ones, each is made only where something links it.
function(gradwire_layer name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  gradwire_include_link(${name})
  add_library(gradwire_${name}_objects OBJECT ${arg_SOURCES})
  target_include_directories(gradwire_${name}_objects PUBLIC ${GRADWIRE_INCLUDE_DIR})
  target_link_libraries(gradwire_${name}_objects PRIVATE ${arg_LIBRARIES})
  gradwire_precompile(gradwire_${name}_objects standard)

  set(only_on_demand)
  if(SKBUILD)
    set(only_on_demand EXCLUDE_FROM_ALL)
  endif()
  add_library(gradwire_${name} SHARED ${only_on_demand} $<TARGET_OBJECTS:gradwire_${name}_objects>)
  add_library(gradwire_${name}_static STATIC ${only_on_demand}
              $<TARGET_OBJECTS:gradwire_${name}_objects>)
  add_library(gradwire::${name} ALIAS gradwire_${name})
  add_library(gradwire::${name}_static ALIAS gradwire_${name}_static)
  set_target_properties(gradwire_${name}_static PROPERTIES EXPORT_NAME ${name}_static)
  set_target_properties(gradwire_${name} PROPERTIES EXPORT_NAME ${name} VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                        INSTALL_RPATH "$ORIGIN")
  # Symbols of static libraries (the CUDA runtime) stay inside whatever they are linked into.
  target_link_options(gradwire_${name} PRIVATE LINKER:--exclude-libs,ALL)
  if(NOT GRADWIRE_SANITIZE)  # some sanitizer runtimes are resolved by the program
    target_link_options(gradwire_${name} PRIVATE LINKER:--no-undefined)
  endif()
  target_link_options(gradwire_${name}_static INTERFACE LINKER:--exclude-libs,libcudart_static.a)
  foreach(target gradwire_${name} gradwire_${name}_static)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${GRADWIRE_INCLUDE_DIR}>
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${target} PRIVATE ${arg_LIBRARIES})
    if(GRADWIRE_SANITIZE)
      target_link_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${GRADWIRE_SANITIZE}>)
    endif()
  endforeach()
  foreach(dependency IN LISTS arg_DEPENDS)
    target_link_libraries(gradwire_${name} PUBLIC gradwire_${dependency})
    target_link_libraries(gradwire_${name}_static PUBLIC gradwire_${dependency}_static)
  endforeach()
  set_property(GLOBAL APPEND PROPERTY GRADWIRE_LAYERS ${name})
  set_property(TARGET gradwire_${name} PROPERTY GRADWIRE_DEPENDS ${arg_DEPENDS})
endfunction()

# gradwire_test(<name> SOURCES ... [LIBRARIES target ...] [TIMEOUT seconds]): a GoogleTest program,
# each of its tests known to ctest.
function(gradwire_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gtest_main)
  gradwire_precompile(${name} tests)
  include(GoogleTest)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX ${name}.
                       PROPERTIES TIMEOUT ${arg_TIMEOUT})
endfunction()
