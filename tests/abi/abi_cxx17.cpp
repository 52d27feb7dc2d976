// abi_cxx17.cpp - abi.h alone, as C++17; what crosses a process is plain bytes there too.
#include "schemas/abi.h"

#include <type_traits>

static_assert(std::is_trivially_copyable<attnd_sqe>::value, "copied by memcpy");
static_assert(std::is_standard_layout<attnd_sqe>::value, "offsets mean the same in C");
static_assert(std::is_trivially_copyable<attnd_plan_head>::value, "copied by memcpy");
static_assert(std::is_standard_layout<attnd_plan_head>::value, "offsets mean the same in C");
static_assert(std::is_standard_layout<attnd_queue_head>::value, "offsets mean the same in C");
