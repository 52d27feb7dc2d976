/*
 * arrival.c - see arrival.h.
 *
 * An attachment has a slot for each arrival and, once it has had one, a byte for each page: which
 * slot it is of. Nothing of this is looked at where no page arrives.
 */
#include "service/objects/arrival.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t arrival_bytes(uint32_t count)
{
    return sizeof(struct attnd_arrival) + count * sizeof(int32_t);
}

/* The attachment's table, once. */
static int make_table(struct attnd_client *client, struct attnd_attachment *attachment,
                      struct attnd_fault *fault)
{
    const uint64_t bytes = sizeof(*attachment->arrivals) + attachment->pool->shape.pages;

    if (attachment->arrivals)
        return 0;
    int rc = attnd_quota_charge(client, bytes, fault);
    if (rc < 0)
        return rc;
    attachment->arrivals = calloc(1, bytes);
    if (attachment->arrivals)
        return 0;
    attnd_quota_refund(client->service, attnd_quota_payer(client), bytes);
    return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
}

static int vacant(const struct attnd_arrivals *arrivals)
{
    for (int slot = 0; slot < (int)ATTND_ARRIVALS_MAX; slot++)
        if (!arrivals->slot[slot])
            return slot;
    return -1;
}

int attnd_arrival_begin(struct attnd_client *client, struct attnd_attachment *attachment,
                        const int32_t *pages, uint32_t count, struct attnd_arrival **out,
                        struct attnd_fault *fault)
{
    int rc = make_table(client, attachment, fault);
    if (rc < 0)
        return rc;
    struct attnd_arrivals *arrivals = attachment->arrivals;
    const int slot = vacant(arrivals);
    if (slot < 0)
        return attnd_fault_set(fault, -ATTND_E_FULL, ATTND_F_COUNT, 0, ATTND_ARRIVALS_MAX, 0);
    rc = attnd_quota_charge(client, arrival_bytes(count), fault);
    if (rc < 0)
        return rc;
    struct attnd_arrival *arrival = calloc(1, arrival_bytes(count));
    if (!arrival) {
        attnd_quota_refund(client->service, attnd_quota_payer(client), arrival_bytes(count));
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    }
    arrival->attachment = attachment;
    arrival->serial = ++arrivals->serials;
    arrival->slot = (uint32_t)slot;
    arrival->count = arrival->left = count;
    if (count)
        memcpy(arrival->pages, pages, count * sizeof(*pages));
    for (uint32_t i = 0; i < count; i++)
        arrivals->of_page[pages[i]] = (uint8_t)(slot + 1);
    arrivals->slot[slot] = arrival;
    arrivals->service = client->service;
    arrivals->payer = attnd_quota_payer(client);
    *out = arrival;
    return 0;
}

static void arrival_free(struct attnd_arrival *arrival)
{
    struct attnd_arrivals *arrivals = arrival->attachment ? arrival->attachment->arrivals : NULL;

    if (arrivals) {
        for (uint32_t i = 0; i < arrival->count; i++)
            if (arrivals->of_page[arrival->pages[i]] == arrival->slot + 1)
                arrivals->of_page[arrival->pages[i]] = 0;
        arrivals->slot[arrival->slot] = NULL;
        attnd_quota_refund(arrivals->service, arrivals->payer, arrival_bytes(arrival->count));
    }
    free(arrival);
}

void attnd_arrival_layers(struct attnd_arrival *arrival, uint32_t layers)
{
    assert(layers >= arrival->layers);
    arrival->layers = layers;
}

void attnd_arrival_end(struct attnd_arrival *arrival, const struct attnd_fault *fault)
{
    arrival->over = 1;
    if (!fault || !arrival->attachment || arrival->left == 0)
        arrival_free(arrival);
    else
        arrival->fault = *fault;
}

void attnd_arrival_forget(struct attnd_attachment *attachment, int32_t page)
{
    struct attnd_arrivals *arrivals = attachment->arrivals;
    const uint8_t place = arrivals ? arrivals->of_page[page] : 0;

    if (!place)
        return;
    struct attnd_arrival *arrival = arrivals->slot[place - 1];
    arrivals->of_page[page] = 0;
    if (--arrival->left == 0 && arrival->over)
        arrival_free(arrival);
}

void attnd_arrival_forget_all(struct attnd_client *client, struct attnd_attachment *attachment)
{
    struct attnd_arrivals *arrivals = attachment->arrivals;

    if (!arrivals)
        return;
    for (uint32_t slot = 0; slot < ATTND_ARRIVALS_MAX; slot++) {
        struct attnd_arrival *arrival = arrivals->slot[slot];
        if (!arrival)
            continue;
        attnd_quota_refund(client->service, arrivals->payer, arrival_bytes(arrival->count));
        arrival->attachment = NULL;
        if (arrival->over)
            free(arrival); /* else whoever brings the bytes ends it */
    }
    attnd_quota_refund(client->service, attnd_quota_payer(client),
                       sizeof(*arrivals) + attachment->pool->shape.pages);
    free(arrivals);
    attachment->arrivals = NULL;
}

int attnd_arrival_check(const struct attnd_attachment *attachment, const int32_t *pages,
                        uint32_t count, struct attnd_fault *fault)
{
    const struct attnd_arrivals *arrivals = attachment->arrivals;

    for (uint32_t i = 0; arrivals && i < count; i++) {
        if (pages[i] < 0 || (uint32_t)pages[i] >= attachment->pool->shape.pages)
            continue; /* somebody else says so */
        const uint8_t place = arrivals->of_page[pages[i]];
        const struct attnd_arrival *arrival = place ? arrivals->slot[place - 1] : NULL;
        if (!arrival)
            continue;
        return attnd_fault_set(fault, arrival->fault.code ? arrival->fault.code : -ATTND_E_BUSY,
                               ATTND_F_PAGES, i, pages[i], 0);
    }
    return 0;
}

/* ---- plans ---- */

/* Return: 0; 1 there is no room for another. */
static int await(struct attnd_plan_awaits *awaits, const struct attnd_arrival *arrival)
{
    for (uint32_t i = 0; i < awaits->count; i++)
        if (awaits->on[i].serial == arrival->serial)
            return 0;
    if (awaits->count == ATTND_PLAN_AWAITS_MAX)
        return 1;
    awaits->on[awaits->count++] =
        (struct attnd_plan_await){.serial = arrival->serial, .slot = arrival->slot};
    return 0;
}

int attnd_arrival_collect(const struct attnd_attachment *attachment,
                          struct attnd_plan_awaits *awaits, const int32_t *pages, uint32_t count)
{
    const struct attnd_arrivals *arrivals = attachment->arrivals;

    for (uint32_t i = 0; arrivals && i < count; i++) {
        const uint8_t place = arrivals->of_page[pages[i]];
        if (place && await(awaits, arrivals->slot[place - 1]))
            return 1;
    }
    return 0;
}

static const struct attnd_arrival *find(const struct attnd_attachment *attachment,
                                        const struct attnd_plan_await *on)
{
    const struct attnd_arrivals *arrivals = attachment->arrivals;
    const struct attnd_arrival *arrival = arrivals ? arrivals->slot[on->slot] : NULL;

    return arrival && arrival->serial == on->serial ? arrival : NULL;
}

int attnd_arrival_gate(const struct attnd_attachment *attachment, struct attnd_plan_awaits *awaits,
                       uint32_t layer, struct attnd_fault *fault)
{
    int passes = 1;

    for (uint32_t i = 0; i < awaits->count;) {
        const struct attnd_arrival *arrival = find(attachment, &awaits->on[i]);
        if (!arrival) { /* all of it is here */
            awaits->on[i] = awaits->on[--awaits->count];
            continue;
        }
        if (arrival->fault.code) {
            *fault = arrival->fault;
            return fault->code;
        }
        passes &= layer < arrival->layers;
        i++;
    }
    return passes;
}

int attnd_arrival_whole(const struct attnd_attachment *attachment, struct attnd_plan_awaits *awaits,
                        struct attnd_fault *fault)
{
    const int rc = attnd_arrival_gate(attachment, awaits, UINT32_MAX, fault);

    if (rc < 0 || rc == 1)
        return rc < 0 ? rc : 0;
    return attnd_fault_set(fault, -ATTND_E_BUSY, ATTND_F_KV_INDICES, 0, awaits->count, 0);
}
