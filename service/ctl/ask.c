/*
 * ask.c - a question without a session: connect, one datagram there, one back.
 */
#include "ipc/fdpass.h"
#include "service/ctl/attnctl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define TIMEOUT_S 5

static int find_address(const char *socket_path, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = socket_path ? strlen(socket_path)
                                : attnd_socket_path(ATTND_SOCKET_CONNECT, address->sun_path,
                                                    sizeof(address->sun_path));
    if (length == 0 || length >= sizeof(address->sun_path))
        return -ATTND_E_INVALID;
    if (socket_path)
        memcpy(address->sun_path, socket_path, length);
    return 0;
}

/* Return: a connected socket, or -ATTND_E_*. */
static int dial(const struct sockaddr_un *address)
{
    const struct timeval timeout = {.tv_sec = TIMEOUT_S};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -ATTND_E_SYSTEM;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
        connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -ATTND_E_DISCONNECTED;
    }
    return fd;
}

static int exchange(int fd, const Attnd__Request *request, uint8_t *datagram, Attnd__Reply **reply)
{
    int fds[ATTND_FDS_MAX];
    int fds_count;
    size_t bytes = attnd__request__get_packed_size(request);

    if (bytes > ATTND_DATAGRAM_BYTES_MAX)
        return -ATTND_E_INVALID;
    attnd__request__pack(request, datagram);
    int rc = attnd_fdpass_send(fd, datagram, bytes, NULL, 0);
    if (rc < 0)
        return rc == -ATTND_E_FULL ? -ATTND_E_DISCONNECTED : rc;

    long received = attnd_fdpass_recv(fd, datagram, ATTND_DATAGRAM_BYTES_MAX, fds, &fds_count);
    if (received <= 0) {
        if (received == 0)
            errno = ETIMEDOUT;
        return received == 0 ? -ATTND_E_DISCONNECTED : (int)received;
    }
    attnd_fdpass_close(fds, fds_count);
    *reply = attnd__reply__unpack(NULL, (size_t)received, datagram);
    if (*reply && (*reply)->id == request->id)
        return 0;
    if (*reply)
        attnd__reply__free_unpacked(*reply, NULL);
    *reply = NULL;
    return -ATTND_E_PROTOCOL;
}

int attnctl_ask(const char *socket_path, Attnd__Request *request, Attnd__Reply **reply)
{
    struct sockaddr_un address;
    int rc = find_address(socket_path, &address);

    *reply = NULL;
    request->id = 1;
    if (rc < 0)
        return rc;
    int fd = dial(&address);
    if (fd < 0)
        return fd;
    uint8_t *datagram = malloc(ATTND_DATAGRAM_BYTES_MAX);
    if (datagram)
        rc = exchange(fd, request, datagram, reply);
    else
        rc = -ATTND_E_SYSTEM;
    int error = errno;
    free(datagram);
    close(fd);
    errno = error;
    return rc;
}

enum attnctl_exit attnctl_explain(FILE *out, const char *socket_path, int code)
{
    const int error = errno; /* before anything else is called */
    const char *why = strerror(error);
    char standard[sizeof(((struct sockaddr_un *)NULL)->sun_path)];

    if (!socket_path) {
        (void)attnd_socket_path(ATTND_SOCKET_CONNECT, standard, sizeof(standard));
        socket_path = standard;
    }
    switch (-code) {
    case ATTND_E_INVALID:
        fprintf(out, "attnctl: no socket can be at '%s': a path of 1 to %zu bytes is needed\n",
                socket_path, sizeof(standard) - 1);
        return ATTNCTL_EXIT_USAGE;
    case ATTND_E_PROTOCOL:
        fprintf(out, "attnctl: the answer of the service at %s makes no sense\n", socket_path);
        return ATTNCTL_EXIT_ANSWER;
    default:
        if (error == EACCES || error == EPERM)
            fprintf(out,
                    "attnctl: the service at %s does not admit this user: %s (attnd --allow-uid)\n",
                    socket_path, why);
        else
            fprintf(out, "attnctl: no service at %s: %s\n", socket_path, why);
        return ATTNCTL_EXIT_UNREACHABLE;
    }
}

enum attnctl_exit attnctl_refused(FILE *out, const Attnd__Reply *reply)
{
    const struct attnd_fault fault = {.code = reply->code,
                                      .field = reply->field,
                                      .index = reply->index,
                                      .value = reply->value,
                                      .limit = reply->limit};
    char text[256];

    if (fault.code == -ATTND_E_UNKNOWN && fault.field == ATTND_F_SESSION)
        fprintf(out, "attnctl: there is no session %" PRId64 " (attnctl status lists them)\n",
                fault.value);
    else if (fault.code == -ATTND_E_PERMISSION && fault.field == ATTND_F_SESSION)
        fprintf(out,
                "attnctl: session %" PRId64 " is another user's: root and the service's user may\n",
                fault.value);
    else if (fault.code == -ATTND_E_PERMISSION &&
             (fault.field == ATTND_F_WEIGHT || fault.field == ATTND_F_DAEMON_UID))
        fprintf(out, "attnctl: only root and the service's user, %" PRId64 ", may do this\n",
                fault.field == ATTND_F_WEIGHT ? fault.limit : fault.value);
    else
        fprintf(out, "attnctl: the service answers %s\n",
                attnd_fault_string(&fault, text, sizeof(text)));
    return ATTNCTL_EXIT_ANSWER;
}

enum attnctl_exit attnctl_ask_for(const char *socket_path, Attnd__Request__CallCase call,
                                  void *message, Attnd__Reply__ResultCase wanted,
                                  Attnd__Reply **reply)
{
    enum attnctl_exit code = ATTNCTL_EXIT_OK;
    Attnd__Request request = ATTND__REQUEST__INIT;

    request.call_case = call;
    request.status = message; /* of the union: all of them are pointers to a message */
    int rc = attnctl_ask(socket_path, &request, reply);

    if (rc < 0)
        return attnctl_explain(stderr, socket_path, rc);
    if ((*reply)->code < 0)
        code = attnctl_refused(stderr, *reply);
    else if (wanted != ATTND__REPLY__RESULT__NOT_SET && (*reply)->result_case != wanted)
        code = attnctl_explain(stderr, socket_path, -ATTND_E_PROTOCOL);
    if (code != ATTNCTL_EXIT_OK) {
        attnd__reply__free_unpacked(*reply, NULL);
        *reply = NULL;
    }
    return code;
}

enum attnctl_exit attnctl_ask_done(const char *socket_path, Attnd__Request__CallCase call,
                                   void *message)
{
    Attnd__Reply *reply;
    enum attnctl_exit code =
        attnctl_ask_for(socket_path, call, message, ATTND__REPLY__RESULT__NOT_SET, &reply);

    if (code == ATTNCTL_EXIT_OK)
        attnd__reply__free_unpacked(reply, NULL);
    return code;
}

enum attnctl_exit attnctl_ask_status(const char *socket_path, Attnd__Reply **reply)
{
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;

    return attnctl_ask_for(socket_path, ATTND__REQUEST__CALL_STATUS, &query,
                           ATTND__REPLY__RESULT_STATUS, reply);
}
