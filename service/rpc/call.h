/*
 * call.h - one control call: what its handler gets, and how it is answered, at once or later.
 */
#ifndef ATTND_SERVICE_RPC_CALL_H
#define ATTND_SERVICE_RPC_CALL_H

#include "ipc/fdpass.h"
#include "schemas/attnd.pb-c.h"
#include "service/objects/client.h"

/* A call while its handler runs. All that the reply points to comes from attnd_call_alloc(). */
struct attnd_call {
    struct attnd_service *service;
    struct attnd_client *client;
    const Attnd__Request *request;
    int *fds; /* received; a handler that keeps one sets it to -1, the rest are closed after it */
    int fds_count;
    Attnd__Reply *reply;
    int reply_fds[ATTND_FDS_MAX]; /* stay their owners' */
    int reply_fds_count;
    struct attnd_fault *fault;
};

/* A handler's return: the reply is sent later, by attnd_control_answer(). */
#define ATTND_CALL_LATER 1
/* A handler's return: a part is done, and the piece is over. It is called again with the same
 * request, which brought no descriptor, behind others; client->again_done is kept until then. */
#define ATTND_CALL_AGAIN 2

/** attnd_control_new() - the service's message buffers. Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_control_new(struct attnd_service *service);
void attnd_control_free(struct attnd_service *service);

/** attnd_control_reset() - forget the last request and reply: their memory serves the next. */
void attnd_control_reset(struct attnd_service *service);

#define ATTND_CONTROL_PAUSE 2 /* descriptors run low: look again in a while, and not before */

/** attnd_control_receive() - one datagram of the client, decoded into the service's buffers, or one
 * that is large into its own: then client->again is set, and the request can be served later
 * @request: NULL if its bytes are no request at all
 * @fds:     [ATTND_FDS_MAX], received with it
 * Return: the code of attnd_control_decode(); 1 there is none, or the client was ended;
 * ATTND_CONTROL_PAUSE. */
int attnd_control_receive(struct attnd_client *client, Attnd__Request **request, int *fds,
                          int *fds_count);

/** attnd_control_keep() - the request that was received last, for ATTND_CALL_AGAIN. Return: 0 it is
 * kept, now or before; -ATTND_E_NO_MEMORY. */
int attnd_control_keep(struct attnd_client *client);
/** attnd_control_kept() - the one that is kept. */
const Attnd__Request *attnd_control_kept(const struct attnd_client *client);
/** attnd_control_drop() - it is served. Harmless without one. */
void attnd_control_drop(struct attnd_client *client);

/** attnd_call_deliver() - send the reply: the result if @code is 0, else the call's fault. A client
 * that does not read its replies is ended by it. */
void attnd_call_deliver(struct attnd_call *call, int code);

/** attnd_control_answer() - what a handler left open
 * @reply: id and result are set
 * @fd:    goes with it and stays its owner's; -1: none
 * @fault: goes instead of the result if its code is not 0
 * May end the client. */
void attnd_control_answer(struct attnd_client *client, Attnd__Reply *reply, int fd,
                          const struct attnd_fault *fault);

/** attnd_call_alloc() - memory until the reply is sent; zeroed. NULL: the message would be too
 * large for a datagram anyway. */
void *attnd_call_alloc(struct attnd_call *call, size_t bytes);

/** attnd_call_result() - the message of the reply's result @which, empty, for the handler to fill.
 * It is dropped if the call fails. NULL: there is no memory, and the fault says so. */
void *attnd_call_result(struct attnd_call *call, Attnd__Reply__ResultCase which);

/** attnd_call_token() - a TokenReply. @token: [ATTND_SECRET_BYTES], there until the reply is sent.
 * Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_call_token(struct attnd_call *call, const uint8_t *token);

/** attnd_call_no_memory() - the fault of a reply that has no room. Return: -ATTND_E_NO_MEMORY. */
int attnd_call_no_memory(struct attnd_call *call);

#endif
