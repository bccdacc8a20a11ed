# Looks for what the AUTO|ON options need. OFF never looks.

set(found OFF)
set(GRADWIRE_WITH_CUDA_KERNELS OFF)
set(detail "streams and memory only: no CUDA compiler was found")
set(reason "no CUDA toolkit with a static runtime was found")
set(gpus "")
if(GRADWIRE_CUDA_FOR_THIS_MACHINE AND GRADWIRE_CUDA STREQUAL "AUTO")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE gpus OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(failed OR NOT gpus MATCHES "^[0-9]+[.][0-9]+(\n[0-9]+[.][0-9]+)*$")
    set(gpus "")
    set(reason "this machine has no GPU; GRADWIRE_CUDA=ON builds it all the same")
  else()
    string(REGEX REPLACE "([0-9]+)[.]([0-9]+)" "\\1\\2-real" gpus "${gpus}")
    string(REPLACE "\n" ";" gpus "${gpus}")
    list(REMOVE_DUPLICATES gpus)
    set(GRADWIRE_CUDA_ARCHITECTURES "${gpus}")
  endif()
endif()
if(GRADWIRE_CUDA STREQUAL "ON" OR gpus OR
   (GRADWIRE_CUDA STREQUAL "AUTO" AND NOT GRADWIRE_CUDA_FOR_THIS_MACHINE))
  # Streams and memory need the runtime library only, kernels the compiler too.
  include(gradwireCudaToolkit)
  if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
    set(found ON)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      if(NOT CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 90)  # of the compiler's own check; targets state theirs
      endif()
      enable_language(CUDA)
      set(GRADWIRE_WITH_CUDA_KERNELS ON)
      set(detail "streams, memory and kernels for ${GRADWIRE_CUDA_ARCHITECTURES}")
    endif()
  endif()
endif()
gradwire_decide(CUDA found "toolkit ${CUDAToolkit_VERSION}, ${detail}"
                "${reason}")

set(found OFF)
if(NOT GRADWIRE_GLOO STREQUAL "OFF")
  find_library(GRADWIRE_GLOO_LIBRARY gloo)
  find_path(GRADWIRE_GLOO_INCLUDE_DIR gloo/transport/tcp/device.h)
  if(GRADWIRE_GLOO_LIBRARY AND GRADWIRE_GLOO_INCLUDE_DIR)
    set(found ON)
  endif()
endif()
gradwire_decide(GLOO found "${GRADWIRE_GLOO_LIBRARY}" "libgloo was not found (Debian: libgloo-dev)")

set(found OFF)
if(NOT GRADWIRE_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    set(found ON)
  endif()
endif()
gradwire_decide(MPI found "MPI ${MPI_C_VERSION}, ${MPI_C_COMPILER}"
                "no MPI was found (Debian: libopenmpi-dev)")

# NCCL itself is opened at run time; what is built needs CUDA's streams and memory. nccl.h and the
# library are for tests alone: what pip installs as nvidia/nccl, or the system's.
if(NOT DEFINED GRADWIRE_NCCL_ROOT)
  execute_process(COMMAND python3 -c "import nvidia.nccl as n; print(list(n.__path__)[0])"
                  OUTPUT_VARIABLE nccl_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(GRADWIRE_NCCL_ROOT "${nccl_root}" CACHE PATH "Folder nvidia/nccl of a Python environment")
endif()
find_path(GRADWIRE_NCCL_INCLUDE_DIR nccl.h HINTS ${GRADWIRE_NCCL_ROOT}/include)
find_path(GRADWIRE_CUDART_INCLUDE_DIR cuda_runtime.h HINTS /usr/local/cuda/include
          ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(GRADWIRE_NCCL_INCLUDE_DIR GRADWIRE_CUDART_INCLUDE_DIR)
gradwire_decide(NCCL GRADWIRE_WITH_CUDA "opened when it is first used"
                "CUDA is off, whose streams and memory it needs")

set(found OFF)
if(NOT GRADWIRE_PLANNER STREQUAL "OFF")
  find_package(nlohmann_json 3.10 CONFIG QUIET)
  if(nlohmann_json_FOUND)
    set(found ON)
  endif()
endif()
gradwire_decide(PLANNER found "nlohmann-json ${nlohmann_json_VERSION}"
                "nlohmann-json >= 3.10 was not found (Debian: nlohmann-json3-dev)")

set(found OFF)
if(NOT GRADWIRE_PYTHON STREQUAL "OFF")
  # Interpreter and module together, first: a lone Interpreter search breaks pybind11.
  find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
  if(Python_FOUND)
    find_package(pybind11 3.0 CONFIG QUIET)
  endif()
  if(Python_FOUND AND pybind11_FOUND)
    set(found ON)
  endif()
endif()
gradwire_decide(PYTHON found "Python ${Python_VERSION}, pybind11 ${pybind11_VERSION}"
                "Python headers or pybind11 >= 3.0 were not found (pip install . brings them)")

set(found OFF)
if(NOT GRADWIRE_TESTS STREQUAL "OFF")
  find_package(GTest QUIET)
  if(GTest_FOUND)
    set(found ON)
  endif()
endif()
gradwire_decide(TESTS found "GoogleTest ${GTest_VERSION}" "GoogleTest was not found (Debian: libgtest-dev)")

set(found OFF)
if(NOT GRADWIRE_BENCH STREQUAL "OFF")
  find_path(GRADWIRE_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-pthread openblas x86_64-linux-gnu)
  find_library(GRADWIRE_OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-pthread)
  find_package(ZLIB QUIET)
  find_package(benchmark QUIET)
  if(GRADWIRE_CBLAS_INCLUDE_DIR AND GRADWIRE_OPENBLAS_LIBRARY AND ZLIB_FOUND)
    set(found ON)
  endif()
endif()
set(detail "trainer with OpenBLAS and zlib")
if(benchmark_FOUND)
  string(APPEND detail ", micro-benchmarks with Google Benchmark ${benchmark_VERSION}")
else()
  string(APPEND detail "; no micro-benchmarks: Google Benchmark was not found")
endif()
gradwire_decide(BENCH found "${detail}"
                "OpenBLAS with cblas.h or zlib was not found (Debian: libopenblas-dev zlib1g-dev)")
