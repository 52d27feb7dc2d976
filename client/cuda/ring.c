/*
 * ring.c - runs in the order of an engine's stream: a kernel of one thread that rings and waits.
 *
 * A ring is a word of the session's mailbox: ATTND_DOORBELL_RUNG + prepared run, and then until it
 * says what became of that. A stream could write and wait by memory operations alone; a kernel does
 * it faster (persistent/cuda/README.md has the figures), because the front end that executes those
 * operations looks at the word less and less often. It needs one thread, no shared memory and a
 * handful of registers, so it runs beside anything.
 *
 * A ring that nobody answered within the time is given up, but may be answered later. The next ring
 * of the lane would be released by that answer, with o not written. So it rings nothing, and ends
 * at once, until the answer has come or the engine has asked what was wrong: the layers of a graph
 * are given up together. Once it has asked, a ring waits for that answer first.
 *
 * It rings by compare-and-swap: a lane that does not rest is not rung, and nobody has to look
 * first.
 *
 * Orders. Kernels before it have ended, so what they wrote is the stream's, and the release of the
 * doorbell, the fence and then the swap, hands it to the worker, which is another process. The
 * acquire of the answer hands o back, and kernels behind it start after this one has ended.
 *
 * Scopes. The mailbox lies in device memory, both sides are threads of one GPU, and device scope
 * orders them, whatever programs they are of: it relates all GPU threads of one device and one
 * memory synchronization domain (CUDA C++ memory model, "Scope relationships"). System scope would
 * cost 0.4 us more on each side. Two things must hold for that: the context is of the GPU
 * that the mailbox lies in, which open says, and the kernel is in the default domain, as the
 * worker's are, whatever domain the engine gave its stream. What else comes before or behind does
 * not matter: causality has no scope, so what the host, a copy or another GPU stored before the
 * ring, as far as the stream is ordered behind it, is handed on, and so are o and lse in host
 * memory to all that waits for the stream.
 *
 * Kernels that come only when they are called take some microseconds for that. So they are called
 * first, while the doorbell is rung, and once more behind it: those that came by the first call may
 * have looked and left before there was a doorbell.
 *
 * The kernel may be there before the one in front of it has ended (programmatic dependent launch),
 * and waits for that first: otherwise nothing of the stream's order would hold.
 *
 * The kernel is PTX text that the driver compiles for the GPU at hand: this library is built
 * without a CUDA compiler. A capture forbids that, so it is made in relaxed mode: it has no part in
 * what is captured.
 */
#include "client/cuda/stream.h"

#include "client/cuda/device.h"
#include "client/internal.h"
#include "schemas/atomics.h"

#include <string.h>

#define TIMEOUT_NS 30000000000u

/* Bytes from a lane's doorbell: struct attnd_mailbox. Of a word that rests, and of no other, the
 * sign is positive. */
_Static_assert(offsetof(struct attnd_mailbox, error) == 256, "in the text below");
_Static_assert(ATTND_DOORBELL_RUNG == 1u << 31, "in the text below");
_Static_assert(ATTND_E_TIMEOUT == 16, "in the text below");
_Static_assert(offsetof(struct attnd_wake, wake) == 0, "in the text below");

/* For Hopper; elsewhere no launch begins early, and plain_text() leaves out what waits for that. */
#define WAITS "griddepcontrol.wait;"
#define TARGET ".target sm_90"
static const char ring_text[] =
    ".version 7.8\n" TARGET "\n" /* what a worker runs on, and so its engines */
    ".address_size 64\n"
    ".visible .entry attnd_launch(.param .u64 doorbell, .param .u32 rung,\n"
    "                             .param .u64 timeout_ns, .param .u64 wake)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b32 %r<3>;\n"
    "    .reg .b64 %rd<6>;\n"
    "    ld.param.u64 %rd0, [doorbell];\n"
    "    ld.param.u32 %r0, [rung];\n"
    "    ld.param.u64 %rd1, [timeout_ns];\n"
    "    ld.param.u64 %rd5, [wake];\n"
    "    cvta.to.global.u64 %rd0, %rd0;\n"
    "    setp.eq.u64 %p1, %rd5, 0;\n"
    "    " WAITS "\n" /* all before it in the stream is over, and seen */
    "    @!%p1 st.relaxed.sys.global.u32 [%rd5], 1;\n" /* kernels come while this rings */
    "    fence.acq_rel.gpu;\n"                         /* R1 */
    "    mov.u32 %r1, 1;\n"                            /* how a lane rests, mostly */
    "ring:\n"
    "    atom.relaxed.sys.global.cas.b32 %r2, [%rd0], %r1, %r0;\n"
    "    setp.eq.u32 %p0, %r2, %r1;\n"
    "    @%p0 bra waits;\n"
    "    mov.u32 %r1, %r2;\n"
    "    setp.gt.s32 %p0, %r1, 0;\n" /* after a failure */
    "    @%p0 bra ring;\n"
    "    ld.relaxed.sys.global.u32 %r2, [%rd0+256];\n" /* was a ring of this lane given up? */
    "    setp.ne.u32 %p0, %r2, 0;\n"                   /* then something is known that went wrong */
    "    @%p0 bra done;\n"
    "    mov.u64 %rd2, %globaltimer;\n"
    "    setp.eq.u64 %p1, %rd5, 0;\n"
    "    @%p1 bra before;\n"
    "    fence.sc.sys;\n"                        /* as below */
    "    st.relaxed.sys.global.u32 [%rd5], 1;\n" /* was that one called? */
    "before:\n"                                  /* the answer to a ring that was given up */
    "    mov.u64 %rd3, %globaltimer;\n"
    "    sub.u64 %rd4, %rd3, %rd2;\n"
    "    setp.ge.u64 %p1, %rd4, %rd1;\n"
    "    @%p1 bra late;\n"
    "    ld.acquire.sys.global.u32 %r1, [%rd0];\n" /* A1: what is given up writes no o any more */
    "    setp.gt.s32 %p0, %r1, 0;\n"
    "    @!%p0 bra before;\n"
    "    bra ring;\n"
    "waits:\n"
    "    setp.eq.u64 %p1, %rd5, 0;\n" /* they are there */
    "    @%p1 bra begun;\n"
    "    fence.sc.sys;\n" /* the doorbell, then the word: leaving kernels clear it, then look */
    "    st.relaxed.sys.global.u32 [%rd5], 1;\n" /* and if they have left meanwhile */
    "begun:\n"
    "    mov.u64 %rd2, %globaltimer;\n"
    "look:\n"
    "    ld.acquire.sys.global.u32 %r1, [%rd0];\n" /* A1 */
    "    setp.gt.s32 %p0, %r1, 0;\n"
    "    @%p0 bra done;\n"
    "    mov.u64 %rd3, %globaltimer;\n"
    "    sub.u64 %rd4, %rd3, %rd2;\n"
    "    setp.lt.u64 %p1, %rd4, %rd1;\n"
    "    @%p1 bra look;\n"
    "late:\n" /* nobody answered; unless something is known that went wrong before */
    "    atom.relaxed.sys.global.cas.b32 %r2, [%rd0+256], 0, 16;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

/* ---- once a session ---- */

/* Device scope reaches the worker only from its own GPU. */
static int map_on_device(struct attnd_session *session, uint32_t memory, CUdeviceptr *address)
{
    CUdevice device = 0;
    CUresult result = cuCtxGetDevice(&device);

    if (result != CUDA_SUCCESS)
        return attnd_stream_fault(result);
    int rc = attnd_cuda_check_device(session, device);
    return rc < 0 ? rc : attnd_cuda_map(session, memory, address);
}

static int map_mailbox(struct attnd_session *session, struct attnd_stream_launcher *launcher)
{
    struct attnd_info info = {.size = sizeof(info)};
    uint32_t memory;
    int rc = attnd_info(session, &info);

    if (rc < 0)
        return rc;
    /* A worker of processors is woken by attnd_launch(); nothing that a GPU writes wakes it. */
    if (strcmp(info.backend, "cpu") == 0)
        return attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_BACKEND, 0, 0, 0);
    rc = attnd_mailbox(session, &memory);
    if (rc < 0)
        return rc;
    return map_on_device(session, memory, &launcher->mailbox);
}

/* Kernels that leave when they have nothing to do are called by a word of their own. */
static int map_wake(struct attnd_session *session, struct attnd_stream_launcher *launcher)
{
    struct attnd_info info = {.size = sizeof(info)};
    uint32_t memory;
    int rc = attnd_info(session, &info);

    if (rc < 0 || strcmp(info.residency, "elastic") != 0)
        return rc;
    rc = attnd_wake_memory(session, &memory, &launcher->wake_host);
    if (rc < 0)
        return rc;
    CUresult result =
        cuMemHostRegister(launcher->wake_host, ATTND_PAGE_BYTES, CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result == CUDA_SUCCESS)
        result = cuMemHostGetDevicePointer(&launcher->wake, launcher->wake_host, 0);
    return result == CUDA_SUCCESS ? 0 : attnd_stream_fault(result);
}

/* Contexts share the GPU if both are of MPS: a service that was started before it is not. An older
 * driver does not know the question, nor such an MPS. */
static int find_turns(struct attnd_session *session, struct attnd_stream_launcher *launcher)
{
    struct attnd_info info = {.size = sizeof(info)};
    CUdevice device = 0;
    int mps = 0, rc = attnd_info(session, &info);
    CUresult result = cuCtxGetDevice(&device);

    if (rc < 0)
        return rc;
    if (result != CUDA_SUCCESS)
        return attnd_stream_fault(result);
    (void)cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
    launcher->turns = !mps || !info.mps;
    return 0;
}

/* An SM's memory is not parted anew while something is there: with the driver's preference for a
 * kernel that has none, nothing that wants much could begin beside it. */
static CUresult prefer_shared(CUfunction kernel)
{
    return cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                              CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
}

/* The text for every GPU from sm_80 on, into @text. */
static void plain_text(char text[sizeof(ring_text)])
{
    memcpy(text, ring_text, sizeof(ring_text));
    memcpy(strstr(text, TARGET), ".target sm_80", sizeof(TARGET) - 1);
    memset(strstr(text, WAITS), ' ', sizeof(WAITS) - 1);
}

static int load_kernel(struct attnd_stream_launcher *launcher)
{
    char plain[sizeof(ring_text)];
    CUdevice device;
    int major = 0;
    CUresult result = cuCtxGetDevice(&device);

    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    launcher->plain = major < 9;
    plain_text(plain);
    if (result == CUDA_SUCCESS)
        result = cuModuleLoadData(&launcher->module, launcher->plain ? plain : ring_text);
    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(&launcher->ring, launcher->module, "attnd_launch");
    if (result == CUDA_SUCCESS)
        result = prefer_shared(launcher->ring);
    return result == CUDA_SUCCESS ? 0 : attnd_stream_fault(result);
}

int attnd_rings_open(struct attnd_session *session, struct attnd_stream_launcher *launcher)
{
    int rc = map_mailbox(session, launcher);

    if (rc == 0)
        rc = map_wake(session, launcher);
    if (rc == 0)
        rc = find_turns(session, launcher);
    return rc < 0 ? rc : load_kernel(launcher);
}

void attnd_rings_end(struct attnd_stream_launcher *launcher)
{
    if (launcher->module)
        (void)cuModuleUnload(launcher->module);
    if (launcher->mailbox)
        (void)attnd_cuda_unmap(launcher->mailbox);
    if (launcher->wake)
        (void)cuMemHostUnregister(launcher->wake_host);
}

/* ---- each time ---- */

/* The arguments of a ring's launch, in a stream and in a capture. In a graph an early launch brings
 * nothing, and its edge would be in the way of an engine that asks for edges in the plain way. */
enum { IN_CAPTURE = 2, IN_STREAM = 3 };
static CUlaunchAttribute launch_attributes[IN_STREAM] = {
    {.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
     .value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT},
    {.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, .value.memSyncDomainMap = {0, 1}},
    {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
     .value.programmaticStreamSerializationAllowed = 1},
};

/* By a kernel of one thread that rings and waits. */
static CUresult ring_by_kernel(const struct attnd_stream_launcher *launcher, CUdeviceptr doorbell,
                               uint32_t rung, CUstream stream)
{
    uint64_t timeout_ns = TIMEOUT_NS;
    CUdeviceptr wake = launcher->wake;
    void *arguments[] = {&doorbell, &rung, &timeout_ns, &wake};
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cuStreamIsCapturing(stream, &capture);

    if (result != CUDA_SUCCESS)
        return result;
    unsigned int count = capture == CU_STREAM_CAPTURE_STATUS_NONE ? IN_STREAM : IN_CAPTURE;
    if (launcher->plain)
        count = 0;
    const CUlaunchConfig launch = {.gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = stream,
                                   .attrs = launch_attributes,
                                   .numAttrs = count};
    return cuLaunchKernelEx(&launch, launcher->ring, arguments, NULL);
}

static CUstreamBatchMemOpParams wait_at_rest(CUdeviceptr doorbell)
{
    /* As signed numbers whose difference is looked at: of ours, those that rest are 1 and more. A
     * prepared run is no number 0, so what is rung is none of them. */
    return (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                                                    .address = doorbell,
                                                    .value = 1,
                                                    .flags = CU_STREAM_WAIT_VALUE_GEQ}};
}

static CUstreamBatchMemOpParams write_word(CUdeviceptr address, uint32_t value)
{
    return (CUstreamBatchMemOpParams){.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                                     .address = address,
                                                     .value = value}};
}

/* By memory operations of the stream: while it waits, the GPU is the others'. A kernel that waits
 * would keep it for a whole time slice, 2 ms. Each write comes behind all that was before it in the
 * stream (CU_STREAM_WRITE_VALUE_DEFAULT). There is no time after which it gives up: a ring that
 * nobody answers waits for the next worker. */
static CUresult ring_by_stream(const struct attnd_stream_launcher *launcher, CUdeviceptr doorbell,
                               uint32_t rung, CUstream stream)
{
    CUstreamBatchMemOpParams steps[4] = {wait_at_rest(doorbell), write_word(doorbell, rung)};
    unsigned int count = 2;

    if (launcher->wake)
        steps[count++] = write_word(launcher->wake, 1);
    steps[count++] = wait_at_rest(doorbell);
    return cuStreamBatchMemOp(stream, count, steps, 0);
}

CUresult attnd_ring(const struct attnd_stream_launcher *launcher, uint32_t lane, uint32_t prepared,
                    CUstream stream)
{
    const CUdeviceptr doorbell = launcher->mailbox + lane * sizeof(uint32_t);
    const uint32_t rung = ATTND_DOORBELL_RUNG + prepared;

    return launcher->turns ? ring_by_stream(launcher, doorbell, rung, stream)
                           : ring_by_kernel(launcher, doorbell, rung, stream);
}
