# SPDX-License-Identifier: Apache-2.0
# libballast-client as programs outside of this tree get it (docs/client-library.md): a shared and a static library of which
# nothing but lib/client/exports.txt can be seen, headers as <ballast/client.h>, a pkg-config file and a CMake package.
# In this tree the same is Ballast::client, with the same headers in the build folder.
#
# Programs of this tree link bl_client and the libraries behind it instead, which stay as they are.

# What a program may call is what these headers declare. They include each other as they are installed, and nothing of ours
# beside.
set(BALLAST_CLIENT_HEADERS base/status.h base/error.h client/client.h client/heap.h client/runtime.h)
set(BALLAST_CLIENT_INCLUDE ${CMAKE_BINARY_DIR}/include)
foreach(header IN LISTS BALLAST_CLIENT_HEADERS)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/lib/${header})
  get_filename_component(name ${header} NAME)
  file(READ ${CMAKE_SOURCE_DIR}/lib/${header} text)
  string(REGEX REPLACE "#include \"(base|client)/([a-z_]+\\.h)\"" "#include <ballast/\\2>" text "${text}")
  string(REGEX REPLACE "\n(#define BALLAST_[A-Z_]+_H\n)" "\n\\1#ifdef __cplusplus\nextern \"C\" {\n#endif\n" text "${text}")
  string(REGEX REPLACE "\n#endif\n$" "\n#ifdef __cplusplus\n}\n#endif\n#endif\n" text "${text}")
  file(CONFIGURE OUTPUT ${BALLAST_CLIENT_INCLUDE}/ballast/${name} CONTENT "${text}" @ONLY) # written when it differs
endforeach()

# Everything behind it as one object whose other names are its own: nothing of ours, nor of the libraries that a program
# links beside, can be taken for something of the program.
set(exports ${CMAKE_SOURCE_DIR}/lib/client/exports.txt)
set(object ${CMAKE_BINARY_DIR}/lib/ballast-client.o)
set(libraries client rpc tls datapath device loop sys proto base)
list(TRANSFORM libraries REPLACE "(.+)" "$<TARGET_FILE:bl_\\1>" OUTPUT_VARIABLE archives)
list(TRANSFORM libraries PREPEND bl_ OUTPUT_VARIABLE targets)
list(POP_FRONT archives client)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${exports})
file(STRINGS ${exports} names)
list(TRANSFORM names PREPEND "-Wl,--undefined=" OUTPUT_VARIABLE wanted)
add_custom_command(
  OUTPUT ${object}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/lib
  COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${object} ${wanted} -Wl,--whole-archive ${client} -Wl,--no-whole-archive
          -Wl,--start-group ${archives} -Wl,--end-group
  COMMAND ${CMAKE_OBJCOPY} --keep-global-symbols=${exports} ${object}
  DEPENDS ${targets} ${exports} VERBATIM)
list(JOIN names "; " map)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/lib/ballast-client.map
  CONTENT "BALLAST_CLIENT_0 { global: ${map}; local: *; };\n" @ONLY)

add_library(ballast-client SHARED ${object})
add_library(ballast-client-static STATIC ${object})
foreach(target IN ITEMS ballast-client ballast-client-static)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ballast-client LINKER_LANGUAGE C
    ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  target_include_directories(${target} INTERFACE ${BALLAST_CLIENT_INCLUDE})
endforeach()
pkg_check_modules(BALLAST_CLIENT_NEEDS REQUIRED IMPORTED_TARGET GLOBAL grpc libprotobuf-c libuv openssl)
set(needed PkgConfig::BALLAST_CLIENT_NEEDS m ${CMAKE_DL_LIBS} Threads::Threads)
target_link_libraries(ballast-client PRIVATE -Wl,--as-needed ${needed})
target_link_libraries(ballast-client-static INTERFACE ${needed})
# Another number here is another interface: programs have to be built again.
set_target_properties(ballast-client PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0
  LINK_DEPENDS ${CMAKE_BINARY_DIR}/lib/ballast-client.map)
target_link_options(ballast-client PRIVATE -Wl,--version-script=${CMAKE_BINARY_DIR}/lib/ballast-client.map
  -Wl,-Bsymbolic-functions)
if(NOT BALLAST_SANITIZE) # whose library is the program's
  target_link_options(ballast-client PRIVATE -Wl,-z,defs)
endif()
add_library(Ballast::client ALIAS ballast-client)
add_library(Ballast::client-static ALIAS ballast-client-static)

# ---- what is installed: found where it lies, wherever the folder was moved to

include(CMakePackageConfigHelpers)
set(ballast_package ${CMAKE_INSTALL_LIBDIR}/cmake/Ballast)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/client/BallastConfig.cmake.in
  ${CMAKE_BINARY_DIR}/lib/BallastConfig.cmake INSTALL_DESTINATION ${ballast_package}
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lib/BallastConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH ballast_up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" ballast_up "${ballast_up}")
configure_file(${CMAKE_SOURCE_DIR}/cmake/client/ballast-client.pc.in ${CMAKE_BINARY_DIR}/lib/ballast-client.pc @ONLY)

install(TARGETS ballast-client
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client NAMELINK_COMPONENT client-dev)
install(TARGETS ballast-client-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client-dev)
install(DIRECTORY ${BALLAST_CLIENT_INCLUDE}/ballast DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT client-dev)
install(FILES ${CMAKE_BINARY_DIR}/lib/ballast-client.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT client-dev)
install(FILES ${CMAKE_BINARY_DIR}/lib/BallastConfig.cmake ${CMAKE_BINARY_DIR}/lib/BallastConfigVersion.cmake
  DESTINATION ${ballast_package} COMPONENT client-dev)
