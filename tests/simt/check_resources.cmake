# Compiles SOURCE for sm_80, sm_90 and PTX with warnings as errors, and reads what ptxas reports: no
# kernel spills, uses local memory, or takes more than MOST_REGISTERS.

execute_process(COMMAND ${NVCC} ${FLAGS} -O3 -Werror=all-warnings -Xptxas=-v
                        --generate-code=arch=compute_80,code=sm_80
                        --generate-code=arch=compute_90,code=[compute_90,sm_90]
                        -I${INCLUDE} -c ${SOURCE} -o ${OUTPUT}
                OUTPUT_VARIABLE report ERROR_VARIABLE report RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "nvcc failed on ${SOURCE}:\n${report}")
endif()

string(REPLACE ";" "," report "${report}")
string(REGEX REPLACE "[][]" "" report "${report}")
string(REPLACE "\n" ";" lines "${report}")
set(kernel "")
set(kernels 0)
set(most 0)
set(faults "")
foreach(line IN LISTS lines)
  if(line MATCHES "Compiling entry function '([^']+)' for '([^']+)'")
    set(kernel "${CMAKE_MATCH_1} for ${CMAKE_MATCH_2}")
    math(EXPR kernels "${kernels} + 1")
  elseif(line MATCHES "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores")
    if(NOT CMAKE_MATCH_1 EQUAL 0 OR NOT CMAKE_MATCH_2 EQUAL 0)
      string(APPEND faults "\n  ${kernel}: ${line}")
    endif()
  elseif(line MATCHES "Used ([0-9]+) registers")
    if(CMAKE_MATCH_1 GREATER MOST_REGISTERS)
      string(APPEND faults "\n  ${kernel}: ${CMAKE_MATCH_1} registers, at most ${MOST_REGISTERS}")
    endif()
    if(CMAKE_MATCH_1 GREATER most)
      set(most ${CMAKE_MATCH_1})
    endif()
  endif()
endforeach()
if(kernels EQUAL 0)
  message(FATAL_ERROR "ptxas reported no kernel of ${SOURCE}:\n${report}")
endif()
message(STATUS "${kernels} kernels, at most ${most} registers")
if(faults)
  message(FATAL_ERROR "${SOURCE}:${faults}")
endif()
