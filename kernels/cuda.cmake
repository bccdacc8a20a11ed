# Device code, where a CUDA compiler is found. Elsewhere every cuda:: operation throws
# (ops/no_cuda.cc). An object library of its own: the flags of C++ files are not nvcc's.

if(NOT GRADWIRE_WITH_CUDA_KERNELS)
  target_sources(gradwire_kernels_objects PRIVATE ops/no_cuda.cc)
  return()
endif()

file(GLOB device_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ops/*_cuda.cu)
add_library(gradwire_kernels_cuda OBJECT ${device_sources})
# Bits are compared with the CPU's: no fused multiply-add, IEEE division and subnormals (defaults).
target_compile_options(gradwire_kernels_cuda PRIVATE -std=c++20 --fmad=false
                       --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off
                       -Xptxas=-v)
set_target_properties(gradwire_kernels_cuda PROPERTIES CUDA_COMPILER_LAUNCHER
                      "sh;${PROJECT_SOURCE_DIR}/cmake/nvcc_with_report.sh;${CMAKE_CUDA_COMPILER_LAUNCHER}")
if(GRADWIRE_WERROR)
  target_compile_options(gradwire_kernels_cuda PRIVATE -Werror=all-warnings)
endif()
target_include_directories(gradwire_kernels_cuda PRIVATE ${GRADWIRE_INCLUDE_DIR})
set_target_properties(gradwire_kernels_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON
                      CUDA_ARCHITECTURES "80-real;90")
foreach(library IN ITEMS gradwire_kernels gradwire_kernels_static)
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:gradwire_kernels_cuda>)
endforeach()
