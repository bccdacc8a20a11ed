# Install, export and find_package(gradwire CONFIG). Inside a Python package build only the
# component "python" is installed (bindings/CMakeLists.txt).

include(CMakePackageConfigHelpers)
get_property(layers GLOBAL PROPERTY GRADWIRE_LAYERS)
foreach(layer IN LISTS layers)
  install(TARGETS gradwire_${layer} EXPORT gradwireTargets COMPONENT development)
  install(DIRECTORY ${layer}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradwire/${layer}
          COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "internal" EXCLUDE)
endforeach()
install(EXPORT gradwireTargets NAMESPACE gradwire:: COMPONENT development
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradwire)
configure_package_config_file(cmake/gradwireConfig.cmake.in gradwireConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradwire)
write_basic_package_version_file(gradwireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gradwireConfig.cmake
        ${CMAKE_CURRENT_BINARY_DIR}/gradwireConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradwire COMPONENT development)
