/*
 * stream_calls.c - MailboxOpen, Prepare and Unprepare.
 *
 * None is answered at once: what an engine's stream does next involves nobody who could make it
 * wait, so the reply itself must mean that the worker is ready for it, or done with it.
 */
#include "service/prepared/prepared.h"
#include "service/rpc/control.h"

/* stream.c says 1 where the worker has to answer first. */
static int later(int rc)
{
    return rc > 0 ? ATTND_CALL_LATER : rc;
}

int attnd_call_mailbox_open(struct attnd_call *call)
{
    return later(attnd_prepared_open(call->client, call->request->id, call->fault));
}

int attnd_call_prepare(struct attnd_call *call)
{
    const Attnd__Prepare *request = call->request->prepare;
    const struct attnd_sqe_run wish = {.layer = request->layer,
                                       .q_memory = request->q->memory,
                                       .q_offset_bytes = request->q->offset_bytes,
                                       .o_memory = request->o->memory,
                                       .o_offset_bytes = request->o->offset_bytes,
                                       .lse_memory = request->lse ? request->lse->memory : 0,
                                       .lse_offset_bytes =
                                           request->lse ? request->lse->offset_bytes : 0};
    return later(attnd_prepared_add(call->client, call->request->id, request->plan, request->lane,
                                    &wish, call->fault));
}

int attnd_call_unprepare(struct attnd_call *call)
{
    return later(attnd_prepared_remove(call->client, call->request->id,
                                       call->request->unprepare->prepared, call->fault));
}

/* ---- answers ---- */

/* @reply: with its result; @code < 0: that instead. */
static void answer(struct attnd_mail *mail, Attnd__Reply *reply, int fd, int code)
{
    const struct attnd_fault fault = {.code = code};
    if (!mail->calling)
        return; /* the session is dying */
    mail->calling = 0;
    reply->id = mail->call_id;
    attnd_control_answer(mail->client, reply, fd, &fault);
}

void attnd_prepared_answer_open(struct attnd_mail *mail, int code)
{
    Attnd__Reply reply = ATTND__REPLY__INIT;
    Attnd__MailboxReply result = ATTND__MAILBOX_REPLY__INIT;
    result.memory = mail->handle;
    result.size_bytes = mail->memory->size_bytes;
    result.memory_kind = (Attnd__MemoryKind)mail->memory->kind;
    reply.mailbox = &result;
    reply.result_case = ATTND__REPLY__RESULT_MAILBOX;
    answer(mail, &reply, mail->memory->fd, code);
}

void attnd_prepared_answer_add(struct attnd_mail *mail, uint32_t run, int code)
{
    Attnd__Reply reply = ATTND__REPLY__INIT;
    Attnd__PrepareReply result = ATTND__PREPARE_REPLY__INIT;
    result.prepared = run;
    reply.prepare = &result;
    reply.result_case = ATTND__REPLY__RESULT_PREPARE;
    answer(mail, &reply, -1, code);
}

void attnd_prepared_answer_remove(struct attnd_mail *mail)
{
    Attnd__Reply reply = ATTND__REPLY__INIT;
    answer(mail, &reply, -1, 0);
}
