# SPDX-License-Identifier: Apache-2.0
# How every target here is built: one dialect, one set of warnings, one way to name a test.

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

# Fused multiply-adds would change bits between compilers.
add_compile_options(-ffp-contract=off)
add_compile_definitions(_GNU_SOURCE)
if(MILLRACE_SANITIZE)
  add_compile_options(-fsanitize=${MILLRACE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MILLRACE_SANITIZE})
endif()

set(MILLRACE_TEST_ENVIRONMENT "")
if(MILLRACE_SANITIZE MATCHES thread)
  set(MILLRACE_TEST_ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${CMAKE_SOURCE_DIR}/tests/support/tsan.supp")
endif()

set(MILLRACE_WARNINGS -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual
    -Wwrite-strings -Wvla -Wformat=2 -Wundef)
if(MILLRACE_WERROR)
  list(APPEND MILLRACE_WARNINGS -Werror)
endif()

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

# millrace_library(NAME SOURCES... [LINK LIBRARIES...]): a static library, included from the root of the tree.
function(millrace_library name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_options(${name} PRIVATE ${MILLRACE_WARNINGS})
  target_link_libraries(${name} PUBLIC ${arg_LINK})
endfunction()

# millrace_program(NAME SOURCES... [LINK LIBRARIES...]): an installed program.
function(millrace_program name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${name} PRIVATE ${MILLRACE_WARNINGS})
  target_compile_definitions(${name} PRIVATE MILLRACE_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${name} PRIVATE ${arg_LINK})
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# millrace_test(NAME SOURCES... [LINK LIBRARIES...] [ARGS ARGUMENTS...]): a cmocka program run by ctest with label "unit".
function(millrace_test name)
  cmake_parse_arguments(arg "" "" "LINK;ARGS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${name} PRIVATE ${MILLRACE_WARNINGS})
  target_link_libraries(${name} PRIVATE ${arg_LINK} cmocka)
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 120 ENVIRONMENT "${MILLRACE_TEST_ENVIRONMENT}")
endfunction()
