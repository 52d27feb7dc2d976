import attnd
import numpy as np
session = attnd.Session()
pool = attnd.PagePool(session, layers=4, pages=64, page_size=16, num_kv_heads=2, head_dim=64)
attention = attnd.BatchAttention(pool)
attention.plan(qo_indptr=[0, 8], kv_indptr=[0, 1], kv_indices=pool.alloc_pages(1),
               kv_last_page_len=[8], num_qo_heads=8, causal=True)  # a prompt of 8 tokens
q, k, v = (np.zeros((8, heads, 64), np.float16) for heads in (8, 2, 2))  # a model computes these
for layer in range(4):
    attention.append(k, v, layer)
    out, lse = attention.run(q, pool.kv_cache(layer), lse=True)
print("lse of the last token:", lse[7, 0])  # log2(8)
