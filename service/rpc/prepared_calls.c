/*
 * prepared_calls.c - MailboxOpen, Prepare and Unprepare.
 *
 * None is answered here. The next step of an engine's stream passes no daemon that could make it
 * wait, so the reply itself must mean that the worker is ready for it, or done with it.
 */
#include "service/objects/planobj.h"
#include "service/rpc/calls.h"

/* prepared/ says 1 where it answers itself: when the worker has acked, or at once. */
static int later(int rc)
{
    return rc > 0 ? ATTND_CALL_LATER : rc;
}

int attnd_call_mailbox_open(struct attnd_call *call)
{
    return later(attnd_prepared_open(call->client, call->request->id,
                                     (uint32_t)call->request->mailbox_open->executor,
                                     call->request->mailbox_open->account, call->fault));
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
    struct attnd_plan_object *plan = attnd_client_plan(call->client, request->plan);
    const int rc = plan ? attnd_arrival_whole(plan->attachment, &plan->awaits, call->fault) : 0;
    if (rc < 0)
        return rc;
    return later(attnd_prepared_add(call->client, call->request->id, request->plan, request->lane,
                                    &wish, call->fault));
}

int attnd_call_unprepare(struct attnd_call *call)
{
    return later(attnd_prepared_remove(call->client, call->request->id,
                                       call->request->unprepare->prepared, call->fault));
}

/* ---- answers ---- */

void attnd_prepared_answered(struct attnd_mail *mail, const struct attnd_prepared_answer *answer)
{
    Attnd__MailboxReply mailbox = ATTND__MAILBOX_REPLY__INIT;
    Attnd__PrepareReply prepare = ATTND__PREPARE_REPLY__INIT;
    Attnd__Reply reply = ATTND__REPLY__INIT;
    int fd = -1;

    reply.id = mail->call_id;
    if (answer->call == ATTND_PREPARED_OPENED) {
        mailbox.has_executor = 1;
        mailbox.executor =
            mail->by_engine ? ATTND__EXECUTOR__EXECUTOR_ENGINE : ATTND__EXECUTOR__EXECUTOR_SERVICE;
        mailbox.memory_kind = ATTND__MEMORY_KIND__MEMORY_HOST;
        if (mail->account.address) {
            mailbox.size_bytes = mail->account.size_bytes;
            fd = mail->account.fd;
        }
        if (mail->memory) {
            mailbox.memory = mail->handle;
            mailbox.size_bytes = mail->memory->size_bytes;
            mailbox.memory_kind = (Attnd__MemoryKind)mail->memory->kind;
            fd = mail->memory->fd;
        }
        reply.mailbox = &mailbox;
        reply.result_case = ATTND__REPLY__RESULT_MAILBOX;
    } else if (answer->call == ATTND_PREPARED_ADDED) {
        prepare.prepared = answer->run;
        reply.prepare = &prepare;
        reply.result_case = ATTND__REPLY__RESULT_PREPARE;
    }
    attnd_control_answer(mail->client, &reply, fd, &answer->fault);
}
