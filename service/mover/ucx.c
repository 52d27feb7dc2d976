/*
 * ucx.c - see ucx.h.
 *
 * Headers of UCX are wanted when this is built, its libraries only when it runs. Settings are its
 * environment's, set before the library is opened, where nobody has set them: TCP alone, and what
 * made scattered pieces fast. Eager messages, sent from where they lie: with rendezvous bytes would
 * be written by UCX itself, at times that nobody here knows.
 */
#include "service/mover/ucx.h"

#include "schemas/errors.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#define AM_ID 0

#define FUNCTIONS(X)                                                                               \
    X(ucp_get_version)                                                                             \
    X(ucp_config_read)                                                                             \
    X(ucp_config_release)                                                                          \
    X(ucp_init_version)                                                                            \
    X(ucp_worker_create)                                                                           \
    X(ucp_worker_destroy)                                                                          \
    X(ucp_worker_get_efd)                                                                          \
    X(ucp_worker_get_address)                                                                      \
    X(ucp_worker_release_address)                                                                  \
    X(ucp_worker_set_am_recv_handler)                                                              \
    X(ucp_worker_progress)                                                                         \
    X(ucp_worker_arm)                                                                              \
    X(ucp_ep_create)                                                                               \
    X(ucp_ep_close_nbx)                                                                            \
    X(ucp_am_send_nbx)                                                                             \
    X(ucp_request_free)

#define DECLARE(name) __typeof__(name) *name;
static struct {
    FUNCTIONS(DECLARE)
    __typeof__(ucs_status_string) *ucs_status_string;
    ucp_context_h context;
} lib;

struct attnd_ucx {
    const struct attnd_ucx_events *events;
    void *context;
    ucp_worker_h worker;
    ucp_ep_h ep; /* NULL: it only receives */
    int fd;
    int freed; /* on its way out: no event is told */
};

_Static_assert(sizeof(ucp_dt_iov_t) == sizeof(struct iovec) &&
                   offsetof(ucp_dt_iov_t, buffer) == offsetof(struct iovec, iov_base) &&
                   offsetof(ucp_dt_iov_t, length) == offsetof(struct iovec, iov_len),
               "pieces are passed as they are");

/* ---- the library ---- */

static void set(const char *name, const char *value)
{
    (void)setenv(name, value, 0);
}

static void set_environment(const char *interface)
{
    set("UCX_TLS", "tcp");
    set("UCX_RNDV_THRESH", "inf");
    set("UCX_ZCOPY_THRESH", "1k");
    set("UCX_PROTO_ENABLE", "y");
    set("UCX_TCP_TX_SEG_SIZE", "64k");
    set("UCX_TCP_RX_SEG_SIZE", "300k");
    set("UCX_TCP_MAX_IOV", "64");
    set("UCX_MEM_MMAP_HOOK_MODE", "none");
    set("UCX_HANDLE_ERRORS", "none");
    set("UCX_LOG_LEVEL", "error");
    set("UCX_WARN_UNUSED_ENV_VARS", "n");
    if (interface)
        set("UCX_NET_DEVICES", interface);
}

static int load(char *why, size_t why_bytes)
{
    void *ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    void *ucs = ucp ? dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL) : NULL;
    int missing = !ucs;

    if (!ucp || !ucs) {
        snprintf(why, why_bytes, "UCX cannot be loaded: %s", dlerror());
        return -ATTND_E_UNSUPPORTED;
    }
#define LOAD(name)                                                                                 \
    *(void **)(&lib.name) = dlsym(ucp, #name);                                                     \
    missing |= !lib.name;
    FUNCTIONS(LOAD)
#undef LOAD
    *(void **)(&lib.ucs_status_string) = dlsym(ucs, "ucs_status_string");
    if (missing || !lib.ucs_status_string) {
        snprintf(why, why_bytes, "this UCX lacks functions: 1.13 and newer have them");
        return -ATTND_E_UNSUPPORTED;
    }
    return 0;
}

int attnd_ucx_open(const char *interface, char *why, size_t why_bytes)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucp_config_t *config;

    set_environment(interface);
    const int rc = load(why, why_bytes);
    if (rc < 0)
        return rc;
    ucs_status_t status = lib.ucp_config_read(NULL, NULL, &config);
    if (status == UCS_OK) {
        status = lib.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &lib.context);
        lib.ucp_config_release(config);
    }
    if (status == UCS_OK)
        return 0;
    snprintf(why, why_bytes, "UCX does not start: %s", lib.ucs_status_string(status));
    return -ATTND_E_SYSTEM;
}

void attnd_ucx_version(unsigned *major, unsigned *minor, unsigned *release)
{
    lib.ucp_get_version(major, minor, release);
}

/* ---- events ---- */

static ucs_status_t on_received(void *arg, const void *header, size_t header_bytes, void *data,
                                size_t bytes, const ucp_am_recv_param_t *param)
{
    const struct attnd_ucx *ucx = arg;

    if (ucx->freed)
        return UCS_OK;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
        ucx->events->failed(ucx->context, "a message came by rendezvous");
    else
        ucx->events->received(ucx->context, header, header_bytes, data, bytes);
    return UCS_OK;
}

static void on_sent(void *request, ucs_status_t status, void *user)
{
    struct attnd_ucx_message *message = user;
    struct attnd_ucx *ucx = message->ucx;

    lib.ucp_request_free(request);
    if (!ucx->freed)
        ucx->events->sent(ucx->context, message, status != UCS_OK);
}

static void on_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    const struct attnd_ucx *ucx = arg;
    (void)ep;

    if (!ucx->freed)
        ucx->events->failed(ucx->context, lib.ucs_status_string(status));
}

/* ---- a worker ---- */

int attnd_ucx_new(const struct attnd_ucx_events *events, void *context, struct attnd_ucx **out)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SINGLE};
    struct attnd_ucx *ucx = calloc(1, sizeof(*ucx));

    if (!ucx)
        return -ATTND_E_NO_MEMORY;
    ucx->events = events;
    ucx->context = context;
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id = AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_received,
        .arg = ucx};
    if (lib.ucp_worker_create(lib.context, &params, &ucx->worker) != UCS_OK) {
        free(ucx);
        return -ATTND_E_SYSTEM;
    }
    if (lib.ucp_worker_get_efd(ucx->worker, &ucx->fd) != UCS_OK ||
        lib.ucp_worker_set_am_recv_handler(ucx->worker, &handler) != UCS_OK) {
        attnd_ucx_free(ucx);
        return -ATTND_E_SYSTEM;
    }
    *out = ucx;
    return 0;
}

/* An endpoint that is closed by force needs no peer for that. The worker ends what is left. */
void attnd_ucx_free(struct attnd_ucx *ucx)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};

    if (!ucx)
        return;
    ucx->freed = 1;
    if (ucx->ep) {
        const ucs_status_ptr_t request = lib.ucp_ep_close_nbx(ucx->ep, &force);
        if (UCS_PTR_IS_PTR(request))
            lib.ucp_request_free(request);
        for (int i = 0; i < 64 && lib.ucp_worker_progress(ucx->worker); i++)
            ;
    }
    lib.ucp_worker_destroy(ucx->worker);
    free(ucx);
}

int attnd_ucx_address(const struct attnd_ucx *ucx, uint8_t *address)
{
    ucp_address_t *own;
    size_t bytes;

    if (lib.ucp_worker_get_address(ucx->worker, &own, &bytes) != UCS_OK)
        return -ATTND_E_SYSTEM;
    if (bytes <= ATTND_UCX_ADDRESS_BYTES_MAX)
        memcpy(address, own, bytes);
    lib.ucp_worker_release_address(ucx->worker, own);
    return bytes <= ATTND_UCX_ADDRESS_BYTES_MAX ? (int)bytes : -ATTND_E_RANGE;
}

int attnd_ucx_connect(struct attnd_ucx *ucx, const uint8_t *address, size_t bytes)
{
    uint8_t copy[ATTND_UCX_ADDRESS_BYTES_MAX]; /* aligned as the library likes it */
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLER |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                                    .address = (const ucp_address_t *)(const void *)copy,
                                    .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {.cb = on_failed, .arg = ucx}};

    if (bytes == 0 || bytes > sizeof(copy))
        return -ATTND_E_RANGE;
    memcpy(copy, address, bytes);
    return lib.ucp_ep_create(ucx->worker, &params, &ucx->ep) == UCS_OK ? 0 : -ATTND_E_SYSTEM;
}

int attnd_ucx_send(struct attnd_ucx *ucx, const void *header, size_t header_bytes,
                   const struct iovec *pieces, uint32_t count, struct attnd_ucx_message *message)
{
    ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                  UCP_OP_ATTR_FIELD_USER_DATA |
                                                  UCP_OP_ATTR_FIELD_FLAGS,
                                  .flags = UCP_AM_SEND_FLAG_EAGER,
                                  .cb.send = on_sent,
                                  .user_data = message};
    const void *data = pieces[0].iov_base;
    size_t data_count = pieces[0].iov_len;

    message->ucx = ucx;
    if (count > 1) {
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        params.datatype = ucp_dt_make_iov();
        data = pieces;
        data_count = count;
    }
    const ucs_status_ptr_t request =
        lib.ucp_am_send_nbx(ucx->ep, AM_ID, header, header_bytes, data, data_count, &params);
    if (UCS_PTR_IS_PTR(request))
        return 0;
    if (UCS_PTR_IS_ERR(request))
        return -ATTND_E_SYSTEM;
    ucx->events->sent(ucx->context, message, 0);
    return 0;
}

int attnd_ucx_progress(struct attnd_ucx *ucx)
{
    return lib.ucp_worker_progress(ucx->worker) != 0;
}

int attnd_ucx_arm(struct attnd_ucx *ucx)
{
    return lib.ucp_worker_arm(ucx->worker) == UCS_OK;
}

int attnd_ucx_fd(const struct attnd_ucx *ucx)
{
    return ucx->fd;
}
