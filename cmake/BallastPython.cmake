# SPDX-License-Identifier: Apache-2.0
# What a wheel of ballast-torch has beside its Python files: the library under the name that the package loads, as a wheel
# has no links, and the programs that it starts.
install(FILES $<TARGET_FILE:ballast-client> DESTINATION . RENAME libballast-client.so.0 COMPONENT python
  PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
install(PROGRAMS $<TARGET_FILE:activation-store> $<TARGET_FILE:ballastctl> DESTINATION bin COMPONENT python)
