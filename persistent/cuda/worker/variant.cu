/*
 * variant.cu - the worker kernel of one variant. The build compiles this file once for each entry
 * of CUDA_VARIANTS (cuda.mk), with its head dimension, element type and policy; attnd-variant does
 * so with ATTND_MODULE, for a file that a worker loads (modules.cu).
 */
#include "persistent/cuda/worker/worker.cuh"

/* Behind it: shared memory lies in the order of declarations, and a policy's is large. */
#include "persistent/cuda/policy/varied.cuh"

namespace attnd
{

using element_fp16 = __half;
using element_bf16 = __nv_bfloat16;
using policy_plain = std::conditional_t<ATTND_VARIANT_DIM == 192, Plain192, Plain>;
using policy_varied = Varied;
using policy_fp8 = Fp8;

#define PASTE2(prefix, name) prefix##name
#define PASTE4(prefix, dim, type, policy) prefix##dim##_##type##_##policy
#define VARIANT(dim, type, policy) PASTE4(variant_, dim, type, policy)
#define ELEMENT(type) PASTE2(element_, type)
#define POLICY(policy) PASTE2(policy_, policy)

#define DTYPE_fp16 ATTND_FP16
#define DTYPE_bf16 ATTND_BF16
#define KIND_plain ATTND_KERNEL_PLAIN
#define KIND_varied ATTND_KERNEL_VARIED
#define KIND_fp8 ATTND_KERNEL_FP8
#define DTYPE(type) PASTE2(DTYPE_, type)
#define KIND(policy) PASTE2(KIND_, policy)

#ifdef ATTND_MODULE
/* Here and not in the host's code, which a module has none of. */
extern "C" __device__ ModuleFacts attnd_module_facts = {
    attnd_kernel_number(ATTND_VARIANT_DIM, DTYPE(ATTND_VARIANT_TYPE), KIND(ATTND_VARIANT_POLICY)),
    tile_bytes<ATTND_VARIANT_DIM, POLICY(ATTND_VARIANT_POLICY)>,
    sizeof(Resident),
    sizeof(ActiveRun),
    &stuck,
};
#endif

/* V of latents is shorter than K, and the plain policy has rows of one length: those of the varied
 * one are plain, too (variants.cuh). */
#define IS_plain 1
#define IS_varied 0
#define IS_fp8 0
#define PLAIN(policy) PASTE2(IS_, policy)
#if ATTND_VARIANT_DIM == 576 && PLAIN(ATTND_VARIANT_POLICY)
Variant VARIANT(ATTND_VARIANT_DIM, ATTND_VARIANT_TYPE, varied)();

Variant VARIANT(ATTND_VARIANT_DIM, ATTND_VARIANT_TYPE, ATTND_VARIANT_POLICY)()
{
    return VARIANT(ATTND_VARIANT_DIM, ATTND_VARIANT_TYPE, varied)();
}
#else
Variant VARIANT(ATTND_VARIANT_DIM, ATTND_VARIANT_TYPE, ATTND_VARIANT_POLICY)()
{
    return variant_of<ELEMENT(ATTND_VARIANT_TYPE), ATTND_VARIANT_DIM,
                      POLICY(ATTND_VARIANT_POLICY)>();
}
#endif

} // namespace attnd

/* For engines that launch the kernel themselves: they are given this object's device code. */
#define FACTS(dim, type, policy) PASTE4(attnd_facts_, dim, type, policy)
extern "C" {
__device__ attnd_kernel_facts FACTS(ATTND_VARIANT_DIM, ATTND_VARIANT_TYPE, ATTND_VARIANT_POLICY) = {
    attnd_kernel_number(ATTND_VARIANT_DIM, DTYPE(ATTND_VARIANT_TYPE), KIND(ATTND_VARIANT_POLICY)),
    attnd::tile_bytes<ATTND_VARIANT_DIM, attnd::POLICY(ATTND_VARIANT_POLICY)>,
    sizeof(attnd::EngineSession) + sizeof(attnd::Resident),
    attnd::portable,
    attnd::fuses<ATTND_VARIANT_DIM> ? attnd::decode_rows<ATTND_VARIANT_DIM> : 0,
};
}
