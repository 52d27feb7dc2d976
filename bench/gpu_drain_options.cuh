/*
 * gpu_drain_options.cuh - what gpu_drain is asked for: options, and the kernels that they mean.
 */
#ifndef ATTND_BENCH_GPU_DRAIN_OPTIONS_CUH
#define ATTND_BENCH_GPU_DRAIN_OPTIONS_CUH

#include "persistent/cuda/host/launch.cuh"

extern "C" {
#include "service/args/args.h"
}

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace
{

struct Options {
    std::string only;     /* part of a name; or, with a comma, whole names */
    std::string portable; /* folder of kernels that take the place of those built in */
    uint32_t paths = attnd::paths_all, workers = 0, plan_workers = 0, drain = 0, runs = 0,
             engine = 0;
};

/* @text: NULL behind the last argument. Ends the program if there is no such option or value. */
void take_option(Options &options, const std::string &key, const char *text)
{
    const std::map<std::string, uint32_t *> numbers = {{"--paths", &options.paths},
                                                       {"--workers", &options.workers},
                                                       {"--plan-workers", &options.plan_workers},
                                                       {"--drain", &options.drain},
                                                       {"--engine", &options.engine},
                                                       {"--runs", &options.runs}};
    uint64_t number;
    if (text && key == "--only") {
        options.only = text;
    } else if (text && key == "--portable") {
        options.portable = text;
    } else if (text && numbers.count(key) && !attnd_number_parse(text, 0, UINT32_MAX, &number)) {
        *numbers.at(key) = uint32_t(number);
    } else {
        fprintf(stderr, "%s %s: no such option, or not a number of 32 bits\n", key.c_str(),
                text ? text : "");
        exit(2);
    }
}

void refuse(void *, const char *kernel, cudaError_t error)
{
    fprintf(stderr, "%s: %s\n", kernel, cudaGetErrorString(error));
}

/* Loads the kernels. Return: what the driver says. */
cudaError_t prepare(Options &options)
{
    if (options.portable.empty())
        return attnd::resident_prepare();
    const cudaError_t error = attnd::portable_prepare(0);
    options.paths &= attnd::paths_without_maps;
    if (!error && !attnd::portable_kernels(options.portable.c_str(), refuse, NULL))
        fprintf(stderr, "no kernels in %s\n", options.portable.c_str());
    return error;
}

} // namespace

#endif
