# Device code of a layer, where a CUDA compiler is found. Elsewhere every cuda:: operation throws.
# An object library of its own: the flags of C++ files are not nvcc's.

set(GRADWIRE_CUDA_LAUNCHER sh ${CMAKE_CURRENT_LIST_DIR}/nvcc_with_report.sh
    ${CMAKE_CUDA_COMPILER_LAUNCHER})

# gradwire_device_objects(<target> <source.cu>...): an object library of them.
function(gradwire_device_objects target)
  add_library(${target} OBJECT ${ARGN})
  # Bits are compared with the CPU's: no fused multiply-add, IEEE division and subnormals (defaults).
  target_compile_options(${target} PRIVATE -std=c++20 --fmad=false
                         --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off
                         -Xptxas=-v)
  # Without a launcher of one's own (no ccache) nothing may stand behind the script, not even "".
  set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${GRADWIRE_CUDA_LAUNCHER}")
  if(GRADWIRE_WERROR)
    target_compile_options(${target} PRIVATE -Werror=all-warnings)
  endif()
  target_include_directories(${target} PRIVATE ${GRADWIRE_INCLUDE_DIR})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
                        CUDA_ARCHITECTURES "${GRADWIRE_CUDA_ARCHITECTURES}")
endfunction()

# gradwire_device_code(<layer> <folder>): the folder's *_cuda.cu; or its no_cuda.cc and, as C++, those
# that say behind GRADWIRE_NO_CUDA what they do then.
function(gradwire_device_code layer folder)
  file(GLOB device_sources CONFIGURE_DEPENDS ${folder}/*_cuda.cu)
  if(NOT GRADWIRE_WITH_CUDA_KERNELS)
    target_sources(gradwire_${layer}_objects PRIVATE ${folder}/no_cuda.cc)
    foreach(source IN LISTS device_sources)
      file(STRINGS ${source} own LIMIT_COUNT 1 REGEX GRADWIRE_NO_CUDA)
      if(own)
        target_sources(gradwire_${layer}_objects PRIVATE ${source})
        set_source_files_properties(${source} PROPERTIES LANGUAGE CXX SKIP_PRECOMPILE_HEADERS ON
                                    COMPILE_OPTIONS "-x;c++;-DGRADWIRE_NO_CUDA")
      endif()
    endforeach()
    return()
  endif()
  set(target gradwire_${layer}_cuda)
  gradwire_device_objects(${target} ${device_sources})
  foreach(library IN ITEMS gradwire_${layer} gradwire_${layer}_static)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${target}>)
  endforeach()
endfunction()
