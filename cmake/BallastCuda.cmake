# SPDX-License-Identifier: Apache-2.0
# The CUDA back end: two modules that programs load at run time (lib/device/module.h), built where nvcc, the toolkit and
# a C++ compiler for it are. Programs themselves never link an NVIDIA library.
#
#   BALLAST_CUDA=AUTO   build what can be built here, and say what is left out (the default)
#   BALLAST_CUDA=ON     it is an error when something is missing
#   BALLAST_CUDA=OFF
#
# Sets BALLAST_CUDA_DEVICE (libballast-cuda.so can be built) and BALLAST_CUDA_COMPUTE (libballast-cuda-compute.so too).
set(BALLAST_CUDA AUTO CACHE STRING "Build the CUDA modules: AUTO, ON or OFF")
set_property(CACHE BALLAST_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code for these, and PTX of the last one for what comes after them.
set(BALLAST_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "Architectures of the CUDA modules, as CMAKE_CUDA_ARCHITECTURES")

set(BALLAST_CUDA_DEVICE OFF)
set(BALLAST_CUDA_COMPUTE OFF)

function(ballast_cuda_missing what)
  if(BALLAST_CUDA STREQUAL "ON")
    message(FATAL_ERROR "BALLAST_CUDA=ON: ${what}")
  endif()
  message(STATUS "CUDA: ${what}")
endfunction()

# <NAME>_INCLUDE_DIR and <NAME>_LIBRARY of a library of NVIDIA's; <NAME>_HOME of the environment comes first.
function(ballast_cuda_find name header)
  if(NOT DEFINED BALLAST_NVIDIA_WHEELS)
    set(script "import nvidia, os; print(';'.join(os.path.join(p, n) for p in nvidia.__path__ for n in os.listdir(p)))")
    execute_process(COMMAND python3 -c "${script}" OUTPUT_VARIABLE wheels ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(BALLAST_NVIDIA_WHEELS "${wheels}" CACHE INTERNAL "Folders of NVIDIA's Python packages")
  endif()
  set(toolkit ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include ${CUDAToolkit_LIBRARY_DIR}
    ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/lib64)
  find_path(${name}_INCLUDE_DIR ${header} HINTS ENV ${name}_HOME ${toolkit} PATHS ${BALLAST_NVIDIA_WHEELS}
    PATH_SUFFIXES include)
  find_library(${name}_LIBRARY NAMES ${ARGN} HINTS ENV ${name}_HOME ${toolkit} PATHS ${BALLAST_NVIDIA_WHEELS}
    PATH_SUFFIXES lib lib64)
endfunction()

if(BALLAST_CUDA AND BALLAST_SANITIZE AND NOT BALLAST_CUDA STREQUAL "ON")
  message(STATUS "CUDA: not under sanitizers")
elseif(BALLAST_CUDA)
  # Where a toolkit usually is, when nothing else says it.
  if(NOT DEFINED ENV{CUDACXX} AND NOT CMAKE_CUDA_COMPILER)
    find_program(BALLAST_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(BALLAST_NVCC)
      set(ENV{CUDACXX} ${BALLAST_NVCC})
    endif()
  endif()
  include(CheckLanguage)
  set(CMAKE_CUDA_ARCHITECTURES ${BALLAST_CUDA_ARCHITECTURES})
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    if(BALLAST_CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${BALLAST_CCACHE})
    endif()
    enable_language(CUDA)
    # CMake 3.25's own module, which is Debian 12's, wants to deprecate a library that CUDA 13 has no more, for projects that
    # ask for 3.25.
    set(ballast_minimum ${CMAKE_MINIMUM_REQUIRED_VERSION})
    set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
    find_package(CUDAToolkit 13.0 QUIET)
    set(CMAKE_MINIMUM_REQUIRED_VERSION ${ballast_minimum})
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    ballast_cuda_missing("no nvcc, or no C++ compiler for it; the CUDA modules are not built")
  elseif(NOT CUDAToolkit_FOUND)
    ballast_cuda_missing("no CUDA toolkit of version 13.0 or later; the CUDA modules are not built")
  elseif(NOT TARGET CUDA::cudart_static)
    ballast_cuda_missing("the toolkit has no static runtime library (libcudart_static.a); the CUDA modules are not built")
  else()
    set(BALLAST_CUDA_DEVICE ON)
    # Each where its variable says, in the toolkit or the system, or in packages of the Python on the path, where PyTorch
    # brings them. cuDNN is linked. NCCL is loaded when a data path asks for it, and CUPTI when a benchmark asks for the
    # names of kernels: only their headers are needed, and modules look for the libraries where they are found here.
    ballast_cuda_find(CUDNN cudnn_backend.h cudnn libcudnn.so.9)
    ballast_cuda_find(NCCL nccl.h nccl libnccl.so.2)
    ballast_cuda_find(CUPTI cupti.h cupti libcupti.so.13)
    if(NOT NCCL_INCLUDE_DIR)
      ballast_cuda_missing("no nccl.h; the NCCL data path is left out")
    endif()
    if(NOT CUPTI_INCLUDE_DIR)
      message(STATUS "CUDA: no cupti.h; benchmarks name operations instead of kernels")
    endif()
    if(NOT TARGET CUDA::cublasLt) # a toolkit with a compiler and not much else
      ballast_cuda_find(CUBLASLT cublasLt.h cublasLt libcublasLt.so.13)
      if(CUBLASLT_INCLUDE_DIR AND CUBLASLT_LIBRARY)
        add_library(CUDA::cublasLt UNKNOWN IMPORTED)
        set_target_properties(CUDA::cublasLt PROPERTIES IMPORTED_LOCATION ${CUBLASLT_LIBRARY}
          INTERFACE_INCLUDE_DIRECTORIES ${CUBLASLT_INCLUDE_DIR})
      endif()
    endif()
    if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY)
      ballast_cuda_missing("no cuDNN 9; the operations (libballast-cuda-compute.so) are left out")
    elseif(NOT TARGET CUDA::cublasLt)
      ballast_cuda_missing("no cuBLASLt; the operations (libballast-cuda-compute.so) are left out")
    else()
      set(BALLAST_CUDA_COMPUTE ON)
    endif()
    message(STATUS "CUDA: ${CUDAToolkit_VERSION}, architectures ${BALLAST_CUDA_ARCHITECTURES}, "
      "operations ${BALLAST_CUDA_COMPUTE}")
  endif()
endif()

# A module lib<name>.so in build/lib: C and CUDA sources, libraries of this tree inside (DEPENDS), libraries of the
# machine beside it (PRIVATE). Nothing but bl_module is visible. The runtime library of CUDA is inside, so that the
# module loads, and can say what is missing, where there is no toolkit; handles of streams and events are the driver's,
# so that the copies in two modules understand each other. .cu files use nothing of the C++ library.
function(ballast_cuda_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE;INCLUDES" ${ARGN})
  set(folders ${CUDAToolkit_LIBRARY_DIR})
  foreach(library IN ITEMS ${NCCL_LIBRARY} ${CUPTI_LIBRARY} ${CUDNN_LIBRARY} ${CUBLASLT_LIBRARY})
    if(EXISTS "${library}") # not NOTFOUND
      get_filename_component(folder ${library} DIRECTORY)
      list(APPEND folders ${folder})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  add_library(${name} MODULE ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES
    PREFIX lib
    LINKER_LANGUAGE C
    C_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden
    CUDA_RUNTIME_LIBRARY None
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
    BUILD_RPATH "${folders}"
    INSTALL_RPATH "$ORIGIN")
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/lib ${CMAKE_SOURCE_DIR}/stage-service)
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${arg_INCLUDES})
  target_compile_definitions(${name} PRIVATE BALLAST_VERSION="${PROJECT_VERSION}"
    BALLAST_CUDA_BUILT_WITH="CUDA ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR}")
  # Lines of kernels in profiles cost nothing. Host code of .cu files may not throw, and has nothing that threads would
  # have to wait for each other to make: nothing of it asks for the C++ library.
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo -Xcompiler=-fno-exceptions -Xcompiler=-fno-rtti
      -Xcompiler=-fno-threadsafe-statics -Xcompiler=-Wall>)
  ballast_link(${name} DEPENDS ${arg_DEPENDS} PRIVATE ${arg_PRIVATE} CUDA::cudart_static)
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,defs -Wl,--as-needed)
  install(TARGETS ${name} LIBRARY DESTINATION lib COMPONENT cuda)
endfunction()
