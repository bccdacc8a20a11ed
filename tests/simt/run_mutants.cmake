# Builds all mutants and runs the tests that must fail on each. LIST: "program|filter" per line.

execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD_DIR} --target simt_mutants --parallel 2
                OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the mutants do not build:\n${output}")
endif()

file(STRINGS ${LIST} mutants)
set(survivors "")
foreach(mutant IN LISTS mutants)
  string(REPLACE "|" ";" parts "${mutant}")
  list(GET parts 0 program)
  list(GET parts 1 tests)
  execute_process(COMMAND ${program} --gtest_filter=${tests} --gtest_brief=1
                  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  cmake_path(GET program FILENAME name)
  # 1 is a failed test; a crash or a filter without tests is no proof.
  string(REGEX MATCH "FAILED  \\] [^\n]*" first "${output}")
  if(result EQUAL 1 AND first)
    message(STATUS "${name}: ${first}")
  else()
    list(APPEND survivors "${name} (exit ${result})")
  endif()
endforeach()
if(survivors)
  message(FATAL_ERROR "no test failed on: ${survivors}")
endif()
