# SPDX-License-Identifier: Apache-2.0
# The build rules every folder shares: language level, warnings, and one function per kind of target.
#
#   ballast_library(base)                          static library bl_base of all *.c in this folder
#   ballast_library(rpc DEPENDS sys PRIVATE PkgConfig::GRPC)
#   ballast_program(ballastctl DEPENDS rpc)        program build/bin/ballastctl of all *.c in this folder
#   ballast_tests(base)                            one cmocka program per tests/base/*_test.c, linked to bl_base
#
# DEPENDS names libraries of this tree without their prefix. Headers are included as "<folder>/<noun>.h".

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
# The services need everything. Without them a folder whose libraries this machine has not is left out, and said to be.
set(BALLAST_REQUIRED "")
if(BALLAST_SERVICES)
  set(BALLAST_REQUIRED REQUIRED)
endif()
find_package(PkgConfig ${BALLAST_REQUIRED})
# What requirements of requirements link to is their own matter. gRPC's are a graph of Abseil's libraries in which every
# question takes pkgconf most of a second, and CMake asks some 15 about each package.
set(ENV{PKG_CONFIG_MAXIMUM_TRAVERSE_DEPTH} 3)
macro(ballast_find prefix package) # sets ${prefix}_FOUND
  set(${prefix}_FOUND "")
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(${prefix} ${BALLAST_REQUIRED} QUIET IMPORTED_TARGET GLOBAL ${package})
  endif()
endmacro()
macro(ballast_need prefix package) # of a folder's CMakeLists.txt, which ends here when it is missing
  ballast_find(${prefix} ${package})
  if(NOT ${prefix}_FOUND)
    message(STATUS "${CMAKE_CURRENT_SOURCE_DIR}: left out: no ${package}")
    return()
  endif()
endmacro()
macro(ballast_need_libraries) # of this tree
  foreach(name IN ITEMS ${ARGN})
    if(NOT TARGET bl_${name})
      message(STATUS "${CMAKE_CURRENT_SOURCE_DIR}: left out: no ${name}")
      return()
    endif()
  endforeach()
endmacro()
find_program(BALLAST_CCACHE ccache)
if(BALLAST_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${BALLAST_CCACHE})
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_compile_definitions(_GNU_SOURCE)
function(ballast_compile_options) # of C alone: nvcc takes others
  foreach(option IN LISTS ARGN)
    add_compile_options($<$<COMPILE_LANGUAGE:C>:${option}>)
  endforeach()
endfunction()
ballast_compile_options(-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wvla
  -Wformat=2 -Wundef -Wpointer-arith -Wwrite-strings)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  ballast_compile_options(-Wlogical-op -Wduplicated-cond -Wduplicated-branches)
else()
  ballast_compile_options(-Wno-format-zero-length) # saying nothing is one of the things to say
endif()
# Never right, and errors of their own in newer compilers.
ballast_compile_options(-Werror=implicit-function-declaration -Werror=implicit-int -Werror=incompatible-pointer-types
  -Werror=int-conversion -Werror=return-type)
if(BALLAST_WERROR)
  ballast_compile_options(-Werror)
endif()
# Never -ffast-math: it removes isfinite (EXECUTION.md 15). Compute folders add their own relaxations.
# What listens is hardened as Debian hardens what it ships.
set(CMAKE_C_FLAGS_RELEASE
  "-O2 -g -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong -fstack-clash-protection")
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  string(APPEND CMAKE_C_FLAGS_RELEASE " -fcf-protection")
endif()
foreach(kind IN ITEMS EXE SHARED MODULE)
  string(APPEND CMAKE_${kind}_LINKER_FLAGS_RELEASE " -Wl,-z,relro,-z,now")
endforeach()
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)
set(CMAKE_C_FLAGS_DEBUG "-O0 -g3 -DBALLAST_DEBUG=1")

set(BALLAST_SANITIZE "" CACHE STRING "Comma separated sanitizers, e.g. address,undefined or thread")
if(BALLAST_SANITIZE)
  add_compile_options(-fsanitize=${BALLAST_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${BALLAST_SANITIZE})
  include(CheckLinkerFlag)
  check_linker_flag(C -fuse-ld=gold BALLAST_HAS_GOLD)
  if(BALLAST_HAS_GOLD) # links hundreds of tests in a third of the time
    add_link_options(-fuse-ld=gold)
  endif()
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # its guesses at sizes and paths are wrong in code full of checks; release has them
    ballast_compile_options(-Wno-format-truncation -Wno-format-overflow -Wno-restrict -Wno-maybe-uninitialized
      -Wno-stringop-overflow -Wno-stringop-truncation -Wno-array-bounds)
  endif()
  # What sanitizers tell of needs lines and functions. Slower code costs more in tests than faster code does in building.
  set(CMAKE_C_FLAGS_DEBUG "-O1 -g1 -DBALLAST_DEBUG=1")
endif()

option(BALLAST_COVERAGE "Count which lines run (gcov)" OFF)
if(BALLAST_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
  add_custom_target(coverage COMMAND ${CMAKE_SOURCE_DIR}/tools/check/coverage.py ${CMAKE_BINARY_DIR} USES_TERMINAL VERBATIM)
endif()

function(ballast_add_folder folder)
  if(EXISTS ${CMAKE_SOURCE_DIR}/${folder}/CMakeLists.txt)
    add_subdirectory(${CMAKE_SOURCE_DIR}/${folder})
  endif()
endfunction()

function(ballast_link target)
  cmake_parse_arguments(arg "" "" "DEPENDS;PRIVATE;PUBLIC" ${ARGN})
  foreach(dependency IN LISTS arg_DEPENDS)
    target_link_libraries(${target} PUBLIC bl_${dependency})
    set_property(GLOBAL APPEND PROPERTY BALLAST_LINKED bl_${dependency})
  endforeach()
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE} Threads::Threads)
endfunction()

# Of a build that leaves folders out: nothing that is built may want what is not. Without this the linker says so, late.
function(ballast_check_links)
  get_property(linked GLOBAL PROPERTY BALLAST_LINKED)
  list(REMOVE_DUPLICATES linked)
  foreach(library IN LISTS linked)
    if(NOT TARGET ${library})
      message(SEND_ERROR "something that is built depends on ${library}, which is left out")
    endif()
  endforeach()
endfunction()

function(ballast_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE;PUBLIC" ${ARGN})
  if(NOT arg_SOURCES)
    file(GLOB arg_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  endif()
  add_library(bl_${name} STATIC ${arg_SOURCES})
  target_include_directories(bl_${name} PUBLIC ${CMAKE_SOURCE_DIR}/lib)
  ballast_link(bl_${name} DEPENDS ${arg_DEPENDS} PRIVATE ${arg_PRIVATE} PUBLIC ${arg_PUBLIC})
endfunction()

function(ballast_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE;PUBLIC" ${ARGN})
  if(NOT arg_SOURCES)
    file(GLOB arg_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  endif()
  foreach(source IN LISTS arg_SOURCES)
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${source} AND NOT EXISTS ${source})
      message(WARNING "${name} is not built: ${source} is missing")
      return()
    endif()
  endforeach()
  if(NOT arg_SOURCES)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/lib)
  ballast_link(${name} DEPENDS ${arg_DEPENDS} PRIVATE ${arg_PRIVATE} PUBLIC ${arg_PUBLIC})
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# Seconds after which a test counts as hanging. Nothing is measured by it: machines may be slow and busy.
set(BALLAST_TEST_TIMEOUT 900)

# What unit tests are written with.
set(BALLAST_CMOCKA OFF)
if(PKG_CONFIG_FOUND AND BALLAST_TESTS)
  pkg_check_modules(CMOCKA ${BALLAST_REQUIRED} IMPORTED_TARGET cmocka)
  set(BALLAST_CMOCKA ${CMOCKA_FOUND})
endif()

# What runs the tests that are scripts: the distribution's own Python, whose packages packages.txt names.
find_program(BALLAST_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(BALLAST_PYTHON python3)

# In front of the command of a test that looks at what it shares with others (/dev/shm, processes, ports, networks), so that
# others may run beside it.
set(BALLAST_ISOLATE ${CMAKE_SOURCE_DIR}/tests/isolate.sh)

# Tests of one library: every *_test.c is a program and a ctest entry "<library>/<noun>". LABELS unit is the default;
# the asan preset runs only that label. ISOLATED: see above.
function(ballast_tests library)
  cmake_parse_arguments(arg "ISOLATED" "LABEL" "DEPENDS;PRIVATE" ${ARGN})
  if(NOT TARGET bl_${library} OR NOT BALLAST_CMOCKA)
    return()
  endif()
  foreach(needed IN LISTS arg_DEPENDS) # some are made by folders that come later, in a build that has them all
    if(NOT BALLAST_SERVICES AND NOT TARGET bl_${needed})
      return()
    endif()
  endforeach()
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  set(isolate "")
  if(arg_ISOLATED)
    set(isolate ${BALLAST_ISOLATE})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.c)
  foreach(source IN LISTS sources)
    get_filename_component(noun ${source} NAME_WE)
    string(REGEX REPLACE "_test$" "" noun ${noun})
    set(target test_${library}_${noun})
    add_executable(${target} ${source})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/lib ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(${target} PRIVATE
      BALLAST_SOURCE_DIR="${CMAKE_SOURCE_DIR}" BALLAST_BINARY_DIR="${CMAKE_BINARY_DIR}")
    ballast_link(${target} DEPENDS ${library} ${arg_DEPENDS} PRIVATE ${arg_PRIVATE} PkgConfig::CMOCKA)
    add_test(NAME ${library}/${noun} COMMAND ${isolate} $<TARGET_FILE:${target}>)
    set_tests_properties(${library}/${noun} PROPERTIES TIMEOUT ${BALLAST_TEST_TIMEOUT} LABELS ${arg_LABEL} SKIP_RETURN_CODE 77)
  endforeach()
endfunction()
