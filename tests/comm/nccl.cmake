# The NCCL transport over stand-ins, and the real library where it is found.

gradwire_test(control_group_test SOURCES control_group_test.cc LIBRARIES gradwire_comm)
# The GPUs of fake_gpu.cc stand in front of the library's own.
gradwire_test(nccl_transport_test SOURCES nccl_transport_test.cc nccl_faults_test.cc fake_gpu.cc
              fake_nccl.cc LIBRARIES gradwire_comm)
gradwire_test(nccl_library_test SOURCES nccl_library_test.cc nccl_header_check.cc
              LIBRARIES gradwire_comm)
target_compile_definitions(nccl_library_test PRIVATE "GRADWIRE_TEST_NCCL=\"${GRADWIRE_NCCL_ROOT}\"")
if(GRADWIRE_NCCL_INCLUDE_DIR AND GRADWIRE_CUDART_INCLUDE_DIR)
  target_compile_definitions(nccl_library_test PRIVATE GRADWIRE_HAS_NCCL_H=1)
  target_include_directories(nccl_library_test SYSTEM PRIVATE ${GRADWIRE_NCCL_INCLUDE_DIR}
                             ${GRADWIRE_CUDART_INCLUDE_DIR})
endif()

# What bench/nccl_ranks.sh starts on a machine with a GPU.
if(GRADWIRE_WITH_CUDA_KERNELS)
  add_executable(nccl_reducer_rank nccl_reducer_rank.cc)
  target_include_directories(nccl_reducer_rank PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(nccl_reducer_rank PRIVATE gradwire_comm)
  gradwire_compile_options(nccl_reducer_rank)
endif()
