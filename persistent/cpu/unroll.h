/*
 * unroll.h - UNROLL before a loop of constant bounds: all its rounds, written out.
 *
 * The kernels keep arrays of vectors in registers; that works only if every index is a constant.
 * A sanitizer's build defines it as nothing: with checks around each access nothing stays in a
 * register, and loops that are written out took half of that build's time.
 */
#ifndef ATTND_PERSISTENT_CPU_UNROLL_H
#define ATTND_PERSISTENT_CPU_UNROLL_H

#ifndef UNROLL
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif
#endif

#endif
