/*
 * driver.c - the driver's calls, found when they are made.
 *
 * A test program must start where there is no driver, to say that it is skipped, so it does not
 * link libcuda but these. Names are expanded first: cuda.h maps them to versions (cuMemcpyHtoD is
 * cuMemcpyHtoD_v2), and the driver knows only those.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <string.h>

static void *symbol(const char *name)
{
    static void *library;

    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return library ? dlsym(library, name) : NULL;
}

#define NAME(name) NAME_OF_VERSION(name)
#define NAME_OF_VERSION(name) #name
#define FORWARD(name, parameters, arguments)                                                       \
    CUresult name parameters                                                                       \
    {                                                                                              \
        static CUresult(*call) parameters;                                                         \
        void *found = call ? NULL : symbol(NAME(name));                                            \
        if (found)                                                                                 \
            memcpy(&call, &found, sizeof(found));                                                  \
        return call ? call arguments : CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;                       \
    }

FORWARD(cuInit, (unsigned int flags), (flags))
FORWARD(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))
FORWARD(cuDeviceGetCount, (int *count), (count))
FORWARD(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), (uuid, device))
FORWARD(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer), (can, device, peer))
FORWARD(cuDeviceGetName, (char *name, int bytes, CUdevice device), (name, bytes, device))
FORWARD(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device))
FORWARD(cuCtxSetCurrent, (CUcontext context), (context))
FORWARD(cuDeviceGetAttribute, (int *value, CUdevice_attribute name, CUdevice device),
        (value, name, device))
FORWARD(cuCtxGetDevice, (CUdevice * device), (device))
FORWARD(cuCtxSynchronize, (void), ())
FORWARD(cuMemcpyHtoD, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
FORWARD(cuMemcpyDtoH, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
FORWARD(cuMemsetD8, (CUdeviceptr to, unsigned char value, size_t bytes), (to, value, bytes))
FORWARD(cuMemImportFromShareableHandle,
        (CUmemGenericAllocationHandle * handle, void *fd, CUmemAllocationHandleType type),
        (handle, fd, type))
FORWARD(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
FORWARD(cuMemAddressReserve,
        (CUdeviceptr * address, size_t bytes, size_t align, CUdeviceptr wish,
         unsigned long long flags),
        (address, bytes, align, wish, flags))
FORWARD(cuMemAddressFree, (CUdeviceptr address, size_t bytes), (address, bytes))
FORWARD(cuMemMap,
        (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
         unsigned long long flags),
        (address, bytes, offset, handle, flags))
FORWARD(cuMemUnmap, (CUdeviceptr address, size_t bytes), (address, bytes))
FORWARD(cuMemSetAccess,
        (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count),
        (address, bytes, access, count))
FORWARD(cuMemGetAddressRange, (CUdeviceptr * base, size_t *bytes, CUdeviceptr address),
        (base, bytes, address))
FORWARD(cuMemCreate,
        (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop,
         unsigned long long flags),
        (handle, bytes, prop, flags))
FORWARD(cuMemExportToShareableHandle,
        (void *fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
         unsigned long long flags),
        (fd, handle, type, flags))
FORWARD(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address),
        (handle, address))
FORWARD(cuMemHostAlloc, (void **address, size_t bytes, unsigned int flags), (address, bytes, flags))
FORWARD(cuStreamWaitValue32,
        (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
        (stream, address, value, flags))
FORWARD(cuMemAlloc, (CUdeviceptr * address, size_t bytes), (address, bytes))
FORWARD(cuMemFree, (CUdeviceptr address), (address))
FORWARD(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *props), (pool, props))
FORWARD(cuMemPoolDestroy, (CUmemoryPool pool), (pool))
FORWARD(cuMemAllocFromPoolAsync,
        (CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream),
        (address, bytes, pool, stream))
FORWARD(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream),
        (address, bytes, stream))
FORWARD(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), (address, stream))
FORWARD(cuMemPoolExportToShareableHandle,
        (void *fd, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags),
        (fd, pool, type, flags))
FORWARD(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr address),
        (data, address))
FORWARD(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address), (handle, address))
FORWARD(cuPointerGetAttributes,
        (unsigned int count, CUpointer_attribute *names, void **values, CUdeviceptr address),
        (count, names, values, address))
FORWARD(cuStreamSynchronize, (CUstream stream), (stream))
FORWARD(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
        (stream, event, flags))
FORWARD(cuModuleLoadData, (CUmodule * module, const void *image), (module, image))
FORWARD(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
        (function, module, name))
FORWARD(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value),
        (function, attribute, value))
FORWARD(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function),
        (value, attribute, function))
FORWARD(cuLaunchKernel,
        (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
         unsigned int block_x, unsigned int block_y, unsigned int block_z,
         unsigned int shared_bytes, CUstream stream, void **parameters, void **extra),
        (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
         parameters, extra))
FORWARD(cuLaunchKernelEx,
        (const CUlaunchConfig *launch, CUfunction function, void **parameters, void **extra),
        (launch, function, parameters, extra))
FORWARD(cuStreamBatchMemOp,
        (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags),
        (stream, count, params, flags))
FORWARD(cuPointerGetAttribute, (void *value, CUpointer_attribute name, CUdeviceptr address),
        (value, name, address))
FORWARD(cuStreamCreate, (CUstream * stream, unsigned int flags), (stream, flags))
FORWARD(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority),
        (stream, flags, priority))
FORWARD(cuCtxGetStreamPriorityRange, (int *least, int *most), (least, most))
FORWARD(cuStreamQuery, (CUstream stream), (stream))
FORWARD(cuEventCreate, (CUevent * event, unsigned int flags), (event, flags))
FORWARD(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
FORWARD(cuEventElapsedTime, (float *ms, CUevent begin, CUevent end), (ms, begin, end))
FORWARD(cuModuleUnload, (CUmodule module), (module))
FORWARD(cuStreamDestroy, (CUstream stream), (stream))
FORWARD(cuStreamBeginCapture, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
FORWARD(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))
FORWARD(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode))
FORWARD(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), (stream, status))
FORWARD(cuGraphGetEdges_v2,
        (CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count),
        (graph, from, to, data, count))
FORWARD(cuGraphInstantiate, (CUgraphExec * executable, CUgraph graph, unsigned long long flags),
        (executable, graph, flags))
FORWARD(cuGraphDestroy, (CUgraph graph), (graph))
FORWARD(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), (graph, nodes, count))
FORWARD(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type), (node, type))
FORWARD(cuGraphKernelNodeGetAttribute,
        (CUgraphNode node, CUkernelNodeAttrID name, CUkernelNodeAttrValue *value),
        (node, name, value))
FORWARD(cuStreamSetAttribute,
        (CUstream stream, CUstreamAttrID name, const CUstreamAttrValue *value),
        (stream, name, value))
FORWARD(cuGraphLaunch, (CUgraphExec executable, CUstream stream), (executable, stream))
FORWARD(cuCtxGetCurrent, (CUcontext * context), (context))
FORWARD(cuCtxPushCurrent, (CUcontext context), (context))
FORWARD(cuCtxPopCurrent, (CUcontext * context), (context))
FORWARD(cuMemHostRegister, (void *address, size_t bytes, unsigned int flags),
        (address, bytes, flags))
FORWARD(cuMemHostUnregister, (void *address), (address))
FORWARD(cuMemHostGetDevicePointer, (CUdeviceptr * device, void *address, unsigned int flags),
        (device, address, flags))
FORWARD(cuMemcpyDtoHAsync, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
        (to, from, bytes, stream))
FORWARD(cuMemsetD32Async, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
        (to, value, count, stream))
FORWARD(cuEventSynchronize, (CUevent event), (event))
FORWARD(cuGraphExecDestroy, (CUgraphExec executable), (executable))
FORWARD(cuModuleGetGlobal,
        (CUdeviceptr * address, size_t *bytes, CUmodule module, const char *name),
        (address, bytes, module, name))
FORWARD(cuModuleEnumerateFunctions, (CUfunction * functions, unsigned int count, CUmodule module),
        (functions, count, module))
FORWARD(cuMemcpyHtoDAsync, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
        (to, from, bytes, stream))
FORWARD(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
        (to, value, count, stream))
FORWARD(cuStreamGetCaptureInfo,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
         const CUgraphNode **from, const CUgraphEdgeData **edges, size_t *count),
        (stream, status, id, graph, from, edges, count))
FORWARD(cuTensorMapEncodeTiled,
        (CUtensorMap * map, CUtensorMapDataType type, cuuint32_t rank, void *address,
         const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
         const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
         CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill),
        (map, type, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill))
