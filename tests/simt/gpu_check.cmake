# Runs bench/gpu_check.sh as on a machine without a GPU, and without a network where that can be
# arranged; reads what it wrote. SCRIPT, OUT.

set(command ${SCRIPT} --out ${OUT})
execute_process(COMMAND unshare --net true RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
if(result EQUAL 0)
  list(PREPEND command unshare --net)
endif()
file(REMOVE ${OUT})
execute_process(COMMAND ${CMAKE_COMMAND} -E env CUDA_VISIBLE_DEVICES=-1 ${command}
                OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0 OR NOT output MATCHES "^gpu_check.sh: no GPU: [^\n]*\n$")
  message(FATAL_ERROR "exit ${result}, expected 0 and one line about no GPU:\n${output}")
endif()
file(READ ${OUT} json)
string(JSON verdict GET "${json}" verdict)
string(JSON name GET "${json}" gpu name)
string(JSON stages LENGTH "${json}" stages)
if(NOT verdict STREQUAL "no GPU" OR NOT name STREQUAL "" OR NOT stages EQUAL 0)
  message(FATAL_ERROR "verdict '${verdict}', GPU '${name}', ${stages} stages, expected 'no GPU', "
                      "no name and no stages:\n${json}")
endif()
foreach(name IN ITEMS started machine cuda commit)
  string(JSON value GET "${json}" ${name})  # fails where it is missing
endforeach()
message(STATUS "${output}")
