# Runs bench/gpu_check.sh as on a machine without a GPU, and without a network where that can be
# arranged; reads what it wrote. SCRIPT, OUT.

set(command ${SCRIPT} --out ${OUT})
execute_process(COMMAND unshare --net true RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
if(result EQUAL 0)
  list(PREPEND command unshare --net)
endif()
cmake_path(REPLACE_EXTENSION OUT .tgz OUTPUT_VARIABLE archive)
file(REMOVE ${OUT} ${archive})
execute_process(COMMAND ${CMAKE_COMMAND} -E env CUDA_VISIBLE_DEVICES=-1 ${command}
                OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0 OR NOT output MATCHES "\ngpu_check.sh: no GPU: [^\n]*\n$")
  message(FATAL_ERROR "exit ${result}, expected 0 and a last line about no GPU:\n${output}")
endif()
file(READ ${OUT} json)
string(JSON verdict GET "${json}" verdict)
string(JSON stages LENGTH "${json}" stages)
string(JSON absent GET "${json}" stages 0 data gpu absent)  # fails where it is missing
if(NOT verdict STREQUAL "no GPU" OR NOT stages EQUAL 1 OR NOT EXISTS ${archive})
  message(FATAL_ERROR "verdict '${verdict}', ${stages} stages, expected 'no GPU', the machine alone, and "
                      "${archive}:\n${json}")
endif()
foreach(name IN ITEMS started commit)
  string(JSON value GET "${json}" ${name})
endforeach()
message(STATUS "${output}")
