/* abi_c17.c - abi.h alone, as C17. */
#include "schemas/abi.h"
