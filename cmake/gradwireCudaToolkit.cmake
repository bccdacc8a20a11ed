# find_package(CUDAToolkit), for gradwire's own build and for whoever finds the installed package.
#
# CMake 3.25.1 (Debian 12) deprecates CUDA::nvToolsExt in projects that ask for CMake 3.25 or newer, and
# ends there with an error, since CUDA 13 has no such library. So it is not told what the project asks
# for.
set(gradwire_asked_for ${CMAKE_MINIMUM_REQUIRED_VERSION})
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_package(CUDAToolkit QUIET)
set(CMAKE_MINIMUM_REQUIRED_VERSION ${gradwire_asked_for})
unset(gradwire_asked_for)
