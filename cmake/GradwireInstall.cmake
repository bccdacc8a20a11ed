# Install, export, find_package(gradwire CONFIG) and pkg-config. Inside a Python package build only the
# component "python" is installed (bindings/CMakeLists.txt).

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gradwire)
file(RELATIVE_PATH prefix_from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" prefix_from_pkgconfig "${prefix_from_pkgconfig}")

# gradwire_pkgconfig(<layer> <suffix>): gradwire-<layer><suffix>.pc; suffix "" or "-static".
function(gradwire_pkgconfig layer suffix)
  string(REPLACE "-" "_" library "gradwire_${layer}${suffix}")
  get_target_property(depends gradwire_${layer} GRADWIRE_DEPENDS)
  set(requires "")
  if(depends)
    list(TRANSFORM depends PREPEND "gradwire-" OUTPUT_VARIABLE requires)
    list(TRANSFORM requires APPEND "${suffix}")
    list(JOIN requires " " requires)
  endif()
  set(libs "-L\${libdir} -l${library}")
  if(suffix)
    # What the layer itself links; its other layers have pkg-config files of their own.
    get_target_property(linked gradwire_${layer} LINK_LIBRARIES)
    foreach(each IN LISTS linked)
      if(each STREQUAL "Threads::Threads")
        string(APPEND libs " -pthread")
      elseif(each STREQUAL "OpenSSL::Crypto")
        string(APPEND libs " -lcrypto")
      elseif(each MATCHES "CUDA::cudart_static")
        string(APPEND libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl -pthread")
      elseif(each IN_LIST CMAKE_DL_LIBS)
        string(APPEND libs " -l${each}")
      elseif(NOT each MATCHES "^gradwire_|^[$]<BUILD_INTERFACE:")
        message(FATAL_ERROR "gradwire-${layer}${suffix}.pc: no word for '${each}', which the layer links")
      endif()
    endforeach()
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/gradwire.pc.in gradwire-${layer}${suffix}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gradwire-${layer}${suffix}.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endfunction()

get_property(layers GLOBAL PROPERTY GRADWIRE_LAYERS)
foreach(layer IN LISTS layers)
  install(TARGETS gradwire_${layer} gradwire_${layer}_static EXPORT gradwireTargets
          COMPONENT development)
  install(DIRECTORY ${layer}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradwire/${layer}
          COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "internal" EXCLUDE)
  gradwire_pkgconfig(${layer} "")
  gradwire_pkgconfig(${layer} "-static")
endforeach()
install(EXPORT gradwireTargets NAMESPACE gradwire:: COMPONENT development
        DESTINATION ${package_dir})
# What find_package(gradwire COMPONENTS ...) may ask for.
set(components ${layers} static)
foreach(option IN ITEMS CUDA GLOO MPI NCCL)
  if(GRADWIRE_WITH_${option})
    string(TOLOWER ${option} component)
    list(APPEND components ${component})
  endif()
endforeach()
configure_package_config_file(cmake/gradwireConfig.cmake.in gradwireConfig.cmake
                              INSTALL_DESTINATION ${package_dir}
                              PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(gradwireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gradwireConfig.cmake
        ${CMAKE_CURRENT_BINARY_DIR}/gradwireConfigVersion.cmake cmake/gradwireCudaToolkit.cmake
        DESTINATION ${package_dir} COMPONENT development)
