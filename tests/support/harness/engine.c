/*
 * engine.c - pools of any shape out of one memory.
 *
 * Making a pool is one call, so thousands of shapes a minute are cheap: planes of the engine's own
 * lie at the front of memory that stays mapped. Pools of the service (`service_pool`) bring memory
 * of their own, and their pages are leased, all of them at once.
 */
#include "tests/support/harness/engine.h"

#include "schemas/abi.h"
#include "tests/support/harness/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Planes of a shape fit RANDOM_POOL_BYTES by construction; a little more for its last page. */
#define PLANES_BYTES ((uint64_t)RANDOM_POOL_BYTES + (1u << 20))

void engine_open(struct engine *engine, const char *socket_path, const char *name)
{
    struct attnd_open_args args = {.size = sizeof(args), .socket_path = socket_path, .name = name};
    engine_open_with(engine, &args, 0);
}

static void *register_own(struct engine *engine, uint64_t bytes)
{
    int fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0);
    CHECK_EQUAL(ftruncate(fd, (off_t)bytes), 0);
    CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    engine->mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(engine->mapping != MAP_FAILED);
    int rc;
    do /* as an engine would */
        rc = attnd_memory_register(engine->session, fd, bytes, &engine->memory);
    while (rc == -ATTND_E_WORKER_RESTARTED);
    CHECK_OK(rc);
    close(fd);
    return engine->mapping;
}

/* ---- device memory ---- */

static void mirror_open(struct engine *engine, struct engine_mirror *mirror, uint32_t memory)
{
    struct attnd_memory_info info = {.size = sizeof(info)};

    CHECK_OK(attnd_memory_info(engine->session, memory, &info));
    CHECK(info.memory_kind != ATTND_MEMORY_HOST);
    mirror->size_bytes = info.size_bytes;
    mirror->bytes = malloc(info.size_bytes);
    CHECK(mirror->bytes != NULL);
    mirror->device_address = engine->device->map(engine->session, memory);
    /* What another engine wrote is there already; what nobody wrote is nothing to rely on. */
    engine->device->pull(mirror->bytes, mirror->device_address, mirror->size_bytes);
}

static void mirror_close(const struct engine *engine, struct engine_mirror *mirror)
{
    if (!mirror->bytes)
        return;
    engine->device->unmap(mirror->device_address);
    free(mirror->bytes);
    mirror->bytes = NULL;
}

void engine_push(const struct engine *engine)
{
    const struct engine_mirror *mirrors[] = {&engine->memory_mirror, &engine->pool_mirror};

    for (int i = 0; i < 2; i++)
        if (mirrors[i]->bytes && !(i == 1 && engine->fill != ENGINE_FILLS_PAGES))
            engine->device->push(mirrors[i]->device_address, mirrors[i]->bytes,
                                 mirrors[i]->size_bytes);
}

void engine_pull(const struct engine *engine)
{
    const struct engine_mirror *mirrors[] = {&engine->memory_mirror, &engine->pool_mirror};

    for (int i = 0; i < 2; i++)
        if (mirrors[i]->bytes)
            engine->device->pull(mirrors[i]->bytes, mirrors[i]->device_address,
                                 mirrors[i]->size_bytes);
}

/* ---- sessions ---- */

static void divide(struct engine *engine, uint8_t *address)
{
    CHECK(address != NULL);
    engine->planes = address;
    engine->rows = engine->planes + PLANES_BYTES;
    engine->rows_offset_bytes = PLANES_BYTES;
    engine->shadow = malloc(PLANES_BYTES);
    CHECK(engine->shadow != NULL);
    memset(engine->shadow, 0xff, PLANES_BYTES);
}

void engine_open_device(struct engine *engine, const char *socket_path, const char *name,
                        const struct engine_device *device)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = socket_path, .name = name};

    memset(engine, 0, sizeof(*engine));
    engine->device = device;
    CHECK_OK(attnd_open(&args, &engine->session));
    const uint64_t bytes = PLANES_BYTES + ENGINE_ROWS_BYTES;
    if (device->make)
        engine->memory = device->make(engine->session, bytes);
    else
        CHECK_OK(attnd_memory_create_device(engine->session, bytes, &engine->memory));
    mirror_open(engine, &engine->memory_mirror, engine->memory);
    divide(engine, engine->memory_mirror.bytes);
}

void engine_open_with(struct engine *engine, const struct attnd_open_args *args, int own)
{
    const uint64_t bytes = PLANES_BYTES + ENGINE_ROWS_BYTES;
    void *address = NULL;

    memset(engine, 0, sizeof(*engine));
    CHECK_OK(attnd_open(args, &engine->session));
    if (own)
        address = register_own(engine, bytes);
    else
        CHECK_OK(attnd_memory_create(engine->session, bytes, &engine->memory, &address));
    divide(engine, address);
}

static void pool_release(struct engine *engine)
{
    if (engine->plan)
        CHECK_OK(attnd_plan_destroy(engine->session, engine->plan));
    mirror_close(engine, &engine->pool_mirror);
    if (engine->pool)
        CHECK_OK(attnd_pool_release(engine->session, engine->pool));
    free(engine->page_ids);
    engine->page_ids = NULL;
    engine->plan = 0;
    engine->pool = 0;
    engine->shape.heads_kv = 0;
}

void engine_close(struct engine *engine)
{
    mirror_close(engine, &engine->pool_mirror);
    mirror_close(engine, &engine->memory_mirror);
    attnd_close(engine->session);
    if (engine->mapping)
        munmap(engine->mapping, PLANES_BYTES + ENGINE_ROWS_BYTES);
    free(engine->page_ids);
    free(engine->shadow);
    memset(engine, 0, sizeof(*engine));
}

/* ---- planes ---- */

static void lay_planes(struct engine *engine, const struct random_shape *shape)
{
    const int64_t page = random_page_elements(shape);
    const int64_t row = shape->dim + shape->pad;
    const uint64_t pages = random_shape_pages(shape);
    const uint64_t page_bytes = (uint64_t)page * attnd_dtype_bytes(random_shape_kv(shape));

    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        struct attnd_plane *k = &engine->k[layer], *v = &engine->v[layer];
        k->memory = engine->memory;
        k->offset_bytes = layer * pages * 2 * page_bytes;
        k->stride_page = shape->interleaved ? 2 * page : page;
        k->stride_head = shape->hnd ? shape->page_size * row : row;
        k->stride_token = shape->hnd ? row : shape->heads_kv * row;
        *v = *k;
        if (shape->one_plane)
            continue;
        v->offset_bytes += (shape->interleaved ? 1 : pages) * page_bytes;
    }
}

static struct attnd_pool_desc describe(const struct engine *engine,
                                       const struct random_shape *shape)
{
    return (struct attnd_pool_desc){
        .size = sizeof(struct attnd_pool_desc),
        .layers = shape->layers,
        .pages = random_shape_pages(shape),
        .page_size = shape->page_size,
        .heads_kv = shape->heads_kv,
        .dim_qk = shape->dim,
        .dim_vo = random_shape_vo(shape),
        .dtype = random_shape_kv(shape),
        .page_owner = shape->service_pool ? ATTND_PAGES_OF_SERVICE : ATTND_PAGES_OF_ENGINE,
        .k = shape->service_pool ? NULL : engine->k,
        .v = shape->service_pool ? NULL : engine->v,
        .memory_kind = engine->device && shape->service_pool ? ATTND_MEMORY_DEVICE : 0,
    };
}

/* What the service says the pool is must be what was asked for; then it is where we look. */
static void adopt(struct engine *engine, const struct random_shape *shape)
{
    struct attnd_pool_info info = {.size = sizeof(info)};

    CHECK_OK(attnd_pool_info(engine->session, engine->pool, &info));
    CHECK_EQUAL(info.desc.layers, shape->layers);
    CHECK_EQUAL(info.desc.page_size, shape->page_size);
    CHECK_EQUAL(info.desc.heads_kv, shape->heads_kv);
    CHECK_EQUAL(info.desc.dim_qk, shape->dim);
    CHECK_EQUAL(info.desc.dtype, random_shape_kv(shape));
    CHECK_EQUAL(info.desc.pages, random_shape_pages(shape));
    memcpy(engine->k, info.desc.k, shape->layers * sizeof(engine->k[0]));
    memcpy(engine->v, info.desc.v, shape->layers * sizeof(engine->v[0]));
    if (engine->device && info.memory && info.memory != engine->memory)
        mirror_open(engine, &engine->pool_mirror, info.memory);
    engine->address = info.address                ? info.address
                      : engine->pool_mirror.bytes ? engine->pool_mirror.bytes
                                                  : engine->planes;
    engine->shape = *shape;
    engine->plan = engine_plan(engine, RANDOM_LEVELS_MAX * RANDOM_REQUESTS_MAX, 4096,
                               random_shape_pages(shape) + 1024, RANDOM_LEVELS_MAX, 0);
}

static void own_pages(struct engine *engine, uint32_t count)
{
    engine->pages = count;
    engine->window_begin = 0;
    engine->window_end = count;
    engine->page_ids = malloc(count * sizeof(*engine->page_ids));
    CHECK(engine->page_ids != NULL);
    for (uint32_t i = 0; i < count; i++)
        engine->page_ids[i] = (int32_t)i;
}

void engine_pool(struct engine *engine, const struct random_shape *shape)
{
    if (memcmp(&engine->shape, shape, sizeof(*shape)) == 0)
        return;
    CHECK(!engine->attached);
    pool_release(engine);
    if (!engine->poisoned && !shape->service_pool) {
        memset(engine->planes, 0xff, PLANES_BYTES);
        engine->poisoned = 1;
    }
    lay_planes(engine, shape);
    const struct attnd_pool_desc desc = describe(engine, shape);
    CHECK_OK(attnd_pool_create(engine->session, &desc, &engine->pool));
    own_pages(engine, desc.pages);
    if (shape->service_pool)
        CHECK_OK(attnd_pages_alloc(engine->session, engine->pool, engine->pages, engine->page_ids));
    adopt(engine, shape);
}

void engine_attach(struct engine *engine, const struct random_shape *shape,
                   const struct attnd_token *token)
{
    pool_release(engine);
    CHECK_OK(attnd_pool_attach(engine->session, token, &engine->pool));
    own_pages(engine, random_shape_pages(shape));
    engine->attached = 1;
    engine->fill = ENGINE_FILLS_SHADOW;
    adopt(engine, shape);
}

uint32_t engine_plan(struct engine *engine, uint32_t requests, uint32_t rows, uint32_t pages,
                     uint32_t levels, uint32_t fixed_split)
{
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = engine->pool,
                                         .requests = requests,
                                         .rows = rows,
                                         .pages = pages,
                                         .levels = levels,
                                         .heads_q = engine->shape.heads_kv * engine->shape.group,
                                         .fixed_split = fixed_split};
    uint32_t plan = 0;

    CHECK_OK(attnd_plan_create(engine->session, &args, &plan));
    return plan;
}
