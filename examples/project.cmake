# The CMakeLists.txt of a project that uses gradwire; tests/consumer builds minimal.cc with it, as train.cc.
# [project]
cmake_minimum_required(VERSION 3.25)
project(mine LANGUAGES CXX)
find_package(gradwire CONFIG REQUIRED)
add_executable(train train.cc)
target_link_libraries(train PRIVATE gradwire::comm gradwire::optimizers)
# configure it by: cmake -S . -B build -DCMAKE_PREFIX_PATH=DIR
# [project-end]
