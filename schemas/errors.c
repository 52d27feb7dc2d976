/* errors.c - numbers to words. The tables come from the lists in errors.h, so they cannot drift. */
#include "schemas/errors.h"

#include "schemas/kernels.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

int attnd_fault_set(struct attnd_fault *fault, int code, enum attnd_field field, uint64_t index,
                    int64_t value, int64_t limit)
{
    if (fault) {
        fault->code = code;
        fault->field = (uint32_t)field;
        fault->index = index;
        fault->value = value;
        fault->limit = limit;
    }
    return code;
}

/* A peer may have written any number, INT_MIN too, which has no counterpart. */
static int positive(int code)
{
    return code < 0 && code > INT_MIN ? -code : code;
}

const char *attnd_error_name(int code)
{
    switch (positive(code)) {
    case ATTND_OK:
        return "ATTND_OK";
#define X(name, number, sentence)                                                                  \
    case number:                                                                                   \
        return "ATTND_E_" #name;
        ATTND_ERRORS(X)
#undef X
    default:
        return "ATTND_E_?";
    }
}

const char *attnd_error_text(int code)
{
    switch (positive(code)) {
    case ATTND_OK:
        return "success";
#define X(name, number, sentence)                                                                  \
    case number:                                                                                   \
        return sentence;
        ATTND_ERRORS(X)
#undef X
    default:
        return "unknown error";
    }
}

const char *attnd_field_name(uint32_t field)
{
    switch (field) {
#define X(name, number, spelling)                                                                  \
    case number:                                                                                   \
        return spelling;
        ATTND_FIELDS(X)
#undef X
    default:
        return "?";
    }
}

static int field_is_float(uint32_t field)
{
    return field == ATTND_F_SM_SCALE || field == ATTND_F_LOGITS_SOFT_CAP ||
           (field >= ATTND_F_ROPE_THETA && field <= ATTND_F_ROPE_HIGH_FREQ_FACTOR) ||
           (field >= ATTND_F_Q_SCALE && field <= ATTND_F_V_SCALE);
}

static int field_is_option(uint32_t field)
{
#define OPTION(name, member, value)                                                                \
    if (field == ATTND_F_##member)                                                                 \
        return 1;
#include "schemas/options.def"
    return field >= ATTND_F_VARIANT && field <= ATTND_F_MASK;
}

static int field_is_array(uint32_t field)
{
    return (field >= ATTND_F_QO_INDPTR && field <= ATTND_F_KV_LEN) || field == ATTND_F_MASK_INDPTR;
}

/* These say that a state forbids the operation, not that a number is too large or too small: there
 * is no other value that would have been accepted, and a limit of 0 would only mislead. */
static int code_has_limit(int code)
{
    switch (positive(code)) {
    case ATTND_E_OVERLAP:
    case ATTND_E_UNKNOWN:
    case ATTND_E_BUSY:
    case ATTND_E_FULL:
    case ATTND_E_PERMISSION:
    case ATTND_E_PROTOCOL:
    case ATTND_E_DISCONNECTED:
    case ATTND_E_WORKER_RESTARTED:
    case ATTND_E_CANCELLED:
    case ATTND_E_SHARED_PAGE:
    case ATTND_E_NOT_LEASED:
    case ATTND_E_EXPIRED:
    case ATTND_E_FORKED:
        return 0;
    default:
        return 1;
    }
}

/* A socket is no number: what is wrong with one is said in words, and what to do about it. NULL:
 * nothing but what the code says. */
static const char *socket_text(int code)
{
    return positive(code) == ATTND_E_PERMISSION ? "this user is not admitted; see attnd --allow-uid"
                                                : NULL;
}

/* Tokens and tickets are random bytes: there is nothing to show of one that is refused. A pool or a
 * namespace without a handle is one that this session does not have. */
static int field_has_number(const struct attnd_fault *fault)
{
    if ((fault->field == ATTND_F_POOL || fault->field == ATTND_F_PREFIX) &&
        fault->code == -ATTND_E_PERMISSION && fault->value == 0)
        return 0;
    return (fault->field != ATTND_F_TOKEN && fault->field != ATTND_F_TICKET) ||
           code_has_limit(fault->code);
}

/* Value or limit as a number; of a float as the float that it was. */
static void write_number(char *text, size_t text_bytes, const struct attnd_fault *fault,
                         int64_t number)
{
    uint32_t bits = (uint32_t)number;
    float real;

    memcpy(&real, &bits, sizeof(real));
    if (field_is_float(fault->field))
        snprintf(text, text_bytes, "%g", (double)real);
    else
        snprintf(text, text_bytes, "%" PRId64, number);
}

/* A kernel that a worker was built without can be made. */
static void write_kernel(char *text, size_t text_bytes, const struct attnd_fault *fault)
{
    char name[ATTND_KERNEL_NAME_BYTES];
    const char *kernel = attnd_kernel_name((uint32_t)fault->value, name);

    snprintf(text, text_bytes,
             "%s: this worker was built without kernel %s; `attnd-variant %s` makes it for attnd "
             "--modules",
             attnd_error_name(fault->code), kernel, kernel);
}

/* The value that would have been taken instead; "" where there is no such number. */
static void write_limit(char *text, size_t text_bytes, const struct attnd_fault *fault)
{
    int64_t dim = fault->value;
    char number[24];

    text[0] = '\0';
    if (!code_has_limit(fault->code))
        return;
    write_number(number, sizeof(number), fault, fault->limit);
    if (field_is_option(fault->field) && positive(fault->code) == ATTND_E_UNSUPPORTED) {
        snprintf(text, text_bytes, ", not supported %s %s",
                 fault->index == ATTND_F_BACKEND ? "by this" : "with",
                 attnd_field_name((uint32_t)fault->index));
        return;
    }
    if (fault->field == ATTND_F_HEAD_DIM && (dim < 16 || dim > 256 || dim % 16))
        snprintf(text, text_bytes, ", not a multiple of 16 up to 256, nor 576 with dim_vo 512");
    else if (fault->field == ATTND_F_DIM_VO)
        snprintf(text, text_bytes, ", not %s as dim_qk, nor 128 beside 192", number);
    else
        snprintf(text, text_bytes, ", limit %s%s", number,
                 fault->field == ATTND_F_PARTIALS ? " of attnd --scratch" : "");
}

/* A plan that no batch was set on. */
static int is_empty_plan(const struct attnd_fault *fault)
{
    return fault->code == -ATTND_E_INVALID && fault->field == ATTND_F_PLAN && fault->value != 0 &&
           fault->limit == 0;
}

/* Of a batch or a call: a pointer that is NULL. */
static int is_missing(const struct attnd_fault *fault)
{
    return fault->code == -ATTND_E_INVALID && fault->field != ATTND_F_NONE && fault->value == 0 &&
           fault->limit == 0;
}

char *attnd_fault_string(const struct attnd_fault *fault, char *text, size_t text_bytes)
{
    const char *name = attnd_error_name(fault->code);
    const char *why = attnd_error_text(fault->code);
    const char *field = attnd_field_name(fault->field);
    char index[24] = "", value[24], limit[64];

    if (field_is_array(fault->field) || (fault->index && !field_is_option(fault->field)))
        snprintf(index, sizeof(index), "[%" PRIu64 "]", fault->index);
    write_number(value, sizeof(value), fault, fault->value);
    write_limit(limit, sizeof(limit), fault);

    if (fault->code == -ATTND_E_SYSTEM)
        snprintf(text, text_bytes, "%s: %s%s%s", name, field, field[0] ? ": " : "",
                 strerror((int)fault->value));
    else if (fault->code == -ATTND_E_DEVICE) /* value is the driver's */
        snprintf(text, text_bytes, "%s: %s%s%s: error %" PRId64, name, field, field[0] ? ": " : "",
                 why, fault->value);
    else if (fault->code == -ATTND_E_DISCONNECTED && fault->value > 0) /* errno */
        snprintf(text, text_bytes, "%s: the service cannot be reached: %s", name,
                 strerror((int)fault->value));
    else if (fault->field == ATTND_F_SOCKET && socket_text(fault->code))
        snprintf(text, text_bytes, "%s: socket: %s", name, socket_text(fault->code));
    else if (fault->field == ATTND_F_DAEMON_UID)
        snprintf(text, text_bytes, "%s: %s: the service runs as user %s, and not as %" PRId64, name,
                 field, value, fault->limit);
    else if (fault->field == ATTND_F_KERNEL)
        write_kernel(text, text_bytes, fault);
    else if (!field_has_number(fault))
        snprintf(text, text_bytes, "%s: %s: %s", name, field, why);
    else if (fault->field == ATTND_F_NONE || fault->code == -ATTND_E_DISCONNECTED)
        snprintf(text, text_bytes, "%s: %s", name, why);
    else if (is_empty_plan(fault))
        snprintf(text, text_bytes, "%s: %s %s is empty: set a batch first", name, field, value);
    else if (is_missing(fault))
        snprintf(text, text_bytes, "%s: %s is missing", name, field);
    else
        snprintf(text, text_bytes, "%s: %s%s is %s%s (%s)", name, field, index, value, limit, why);
    return text;
}
