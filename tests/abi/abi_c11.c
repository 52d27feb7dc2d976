/* abi_c11.c - abi.h alone, as C11, with every byte of padding spelled out. */
#if defined(__GNUC__)
#pragma GCC diagnostic error "-Wpadded"
#endif
#include "schemas/abi.h"
