# The kernels in the emulator under ThreadSanitizer (race_order.h). The emulator and the tests are not
# compiled for it, the kernels are.

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS -fsanitize=thread)
check_cxx_source_compiles("extern \"C\" void* __tsan_create_fiber(unsigned);
                           int main() { return __tsan_create_fiber(0) == nullptr; }" GRADWIRE_HAS_TSAN_FIBERS)
unset(CMAKE_REQUIRED_FLAGS)
if(NOT GRADWIRE_HAS_TSAN_FIBERS)
  message(STATUS "gradwire: races of emulated kernels not tested (the compiler has no ThreadSanitizer "
                 "that knows fibers)")
  return()
endif()

add_library(simt_race_emulator STATIC EXCLUDE_FROM_ALL block.cc emulator.cc fiber.cc race_order.cc)
target_compile_definitions(simt_race_emulator PUBLIC GRADWIRE_SIMT_RACES)
target_include_directories(simt_race_emulator PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(simt_race_emulator PUBLIC Boost::context Threads::Threads)
target_link_options(simt_race_emulator PUBLIC -fsanitize=thread)
gradwire_compile_options(simt_race_emulator)

# gradwire_race_kernels(<target> <source.cu>...): as gradwire_simt_kernels().
function(gradwire_race_kernels target)
  gradwire_simt_kernels(${target} ${ARGN})
  target_compile_definitions(${target} PRIVATE GRADWIRE_SIMT_RACES)
  target_compile_options(${target} PRIVATE -fsanitize=thread -g1 -O1)
endfunction()

# block.cuh with another is_last_block() each, for races_test.cu: gradwire_last_block(<namespace> <from> <to>)
# changes the first <from> of its body, or with REVERSE the last.
file(READ ${ops}/block.cuh block)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ops}/block.cuh)
function(gradwire_last_block name from to)
  string(FIND "${block}" "bool is_last_block(" at)
  string(SUBSTRING "${block}" ${at} -1 body)
  string(FIND "${body}" "${from}" found ${ARGN})
  if(at LESS 0 OR found LESS 0)
    message(FATAL_ERROR "races: block.cuh has no '${from}' in is_last_block()")
  endif()
  string(LENGTH "${from}" length)
  math(EXPR begin "${at} + ${found}")
  math(EXPR end "${begin} + ${length}")
  string(SUBSTRING "${block}" 0 ${begin} text)
  string(SUBSTRING "${block}" ${end} -1 rest)
  string(REPLACE "namespace gradwire::cuda" "namespace gradwire::${name}" text "${text}${to}${rest}")
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/races/simt_races/${name}.cuh CONTENT "${text}")
endfunction()
set(in_order "atomic_inc_acq_rel(")
gradwire_last_block(between_fences "${in_order}" "inc_between_fences(")
gradwire_last_block(no_fence "${in_order}" "atomicInc(")
gradwire_last_block(no_release "${in_order}" "inc_that_acquires(")
gradwire_last_block(no_acquire "${in_order}" "inc_that_releases(")
gradwire_last_block(no_atomic "${in_order}" "plain_inc(")
gradwire_last_block(no_barrier_before "__syncthreads();" "")
gradwire_last_block(no_barrier_behind "__syncthreads();" "" REVERSE)

gradwire_race_kernels(simt_race_faults ${CMAKE_CURRENT_SOURCE_DIR}/races/races_test.cu)
target_include_directories(simt_race_faults PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/races)
target_link_libraries(simt_race_faults PRIVATE GTest::gtest)
add_executable(simt_races_test races/race_reports.cc $<TARGET_OBJECTS:simt_race_faults>)
target_link_libraries(simt_races_test PRIVATE simt_race_emulator gradwire_kernels GTest::gtest_main)
gradwire_compile_options(simt_races_test)
gtest_discover_tests(simt_races_test DISCOVERY_MODE PRE_TEST TEST_PREFIX simt_races_test.
                     PROPERTIES TIMEOUT 120 LABELS simt)

function(gradwire_race_program name tests)
  add_executable(${name} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${tests}>)
  target_sources(${name} PRIVATE ${ARGN})
  target_link_libraries(${name} PRIVATE simt_race_emulator gradwire_kernels gradwire_optimizers
                        GTest::gtest)
  gradwire_compile_options(${name})
endfunction()

# A sample of the kernels; the others are not emulated there, so the filter names what needs them alone.
gradwire_race_kernels(simt_race_sample_kernels ${ops}/select_cuda.cu)
gradwire_race_program(simt_race_sample simt_tests $<TARGET_OBJECTS:simt_race_sample_kernels>)
set_target_properties(simt_race_sample PROPERTIES EXCLUDE_FROM_ALL OFF)
add_test(NAME simt.a_sample_of_the_kernels_has_no_races
         COMMAND simt_race_sample --gtest_brief=1 --gtest_filter=ConcurrentBlocks.FindTheCutOfTwoChunks)
set_tests_properties(simt.a_sample_of_the_kernels_has_no_races PROPERTIES LABELS simt TIMEOUT 120
                     ENVIRONMENT TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/races/races.supp)

# All of them: tests/soak.py builds and runs these.
gradwire_race_kernels(simt_race_kernels ${kernel_sources})
gradwire_race_kernels(simt_race_optimizer_kernels ${optimizer_sources})
gradwire_race_program(simt_race_kernels_test simt_tests $<TARGET_OBJECTS:simt_race_kernels>)
gradwire_race_program(simt_race_compress_test simt_compress_tests $<TARGET_OBJECTS:simt_race_kernels>)
gradwire_race_program(simt_race_optimizers_test simt_optimizer_tests
                      $<TARGET_OBJECTS:simt_race_optimizer_kernels> $<TARGET_OBJECTS:simt_race_kernels>)
