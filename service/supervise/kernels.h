/*
 * kernels.h - the files of kernels that lie beside the worker program: what an engine that executes
 * its own runs loads, and the worker was built with.
 */
#ifndef ATTND_SERVICE_SUPERVISE_KERNELS_H
#define ATTND_SERVICE_SUPERVISE_KERNELS_H

#include "service/service.h"

/**
 * attnd_kernel_file_open() - a kernel's file, for reading
 * @isa:    the worker's: "sm_80" has files of its own
 * @kernel: attnd_kernel_number(); ATTND_KERNELS: the module `engine`. In the place of a plain one
 *          that has no file comes the varied one, which executes its runs, too.
 * @fd:     receives the file; the caller closes it
 *
 * Blocking: opens a file. Return: 0; -ATTND_E_UNSUPPORTED there is none (field backend, value
 * @kernel); -ATTND_E_RANGE there is no such kernel (field kernel).
 */
int attnd_kernel_file_open(const struct attnd_options *options, const char *isa, uint32_t kernel,
                           int *fd, uint64_t *size_bytes, struct attnd_fault *fault);

/** attnd_kernel_files_are_there() - is the module there without which no kernel is of use? */
int attnd_kernel_files_are_there(const struct attnd_options *options, const char *isa);

#endif
