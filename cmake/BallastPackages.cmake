# SPDX-License-Identifier: Apache-2.0
# Debian packages by CPack (docs/client-library.md): `cpack --config build/CPackConfig.cmake`.
#
#   ballast                 the programs, their manual pages and completions, the demo's job
#   libballast-client0      the shared library, named after its SONAME
#   libballast-client-dev   what programs that use it are built with
#
# What each depends on is worked out from what its files are linked to (dpkg-shlibdeps). The CUDA modules are in none: what they
# are linked to comes from other places than Debian.
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL ballast client client-dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME ballast)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Ballast maintainers <ballast@localhost>" CACHE STRING "Who answers for the packages")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_BALLAST_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # what packages of programs that are linked to it depend on
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(CPACK_DEBIAN_BALLAST_PACKAGE_NAME ballast)
set(CPACK_DEBIAN_BALLAST_PACKAGE_SECTION science)
set(CPACK_COMPONENT_BALLAST_DESCRIPTION "Memory-balanced pipeline-parallel training
Trains models in pipeline stages, and levels their memory: stages park activations
in activation-stores on devices with free memory, or recompute them.")
set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME libballast-client0)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION "Memory of an activation-store, for any program
Parks blocks of memory in an activation-store of Ballast under leases, with checksums,
over shared memory or TCP, and takes them back.")
set(CPACK_DEBIAN_CLIENT-DEV_PACKAGE_NAME libballast-client-dev)
set(CPACK_DEBIAN_CLIENT-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CLIENT-DEV_PACKAGE_DEPENDS "libballast-client0 (= ${PROJECT_VERSION}), libgrpc-dev, libprotobuf-c-dev, \
libuv1-dev, libssl-dev")
set(CPACK_COMPONENT_CLIENT-DEV_DESCRIPTION "Memory of an activation-store, development files
Headers, the static library, and files of pkg-config and CMake.")

# ballast, client -> libballast-client0, ...
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE RENAME copyright COMPONENT ${component}
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/examples/demo.yaml COMPONENT ballast
  DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ballast/examples)
include(CPack)
