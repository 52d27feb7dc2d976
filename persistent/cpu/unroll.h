/*
 * unroll.h - UNROLL before a loop of constant bounds: all its rounds, written out.
 *
 * The kernels keep arrays of vectors in registers; that works only if every index is a constant.
 */
#ifndef ATTND_PERSISTENT_CPU_UNROLL_H
#define ATTND_PERSISTENT_CPU_UNROLL_H

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

#endif
