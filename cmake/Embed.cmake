# SPDX-License-Identifier: Apache-2.0
# cmake -DINPUT=file -DOUTPUT=file.c -DNAME=symbol -DHEADER=declares.h -P Embed.cmake: the bytes of INPUT as
# `const uint8_t NAME[]` and `const size_t NAME_bytes`.
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "((0x[0-9a-f][0-9a-f],)(0x[0-9a-f][0-9a-f],)?(0x[0-9a-f][0-9a-f],)?(0x[0-9a-f][0-9a-f],)?)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"\nconst uint8_t ${NAME}[] = {\n${bytes}};\nconst size_t ${NAME}_bytes = sizeof ${NAME};\n")
