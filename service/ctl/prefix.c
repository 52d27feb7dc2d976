/*
 * prefix.c - `attnctl prefix`: the prefix trees of all pools.
 *
 * A reply holds some tens of namespaces; the rest is asked for until there is no more.
 */
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

#include <inttypes.h>
#include <stdbool.h>

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static void print_space(FILE *out, const Attnd__PrefixSpace *space)
{
    uint64_t pages = (uint64_t)space->blocks * space->block_pages;
    char held[24], saved[24];

    fprintf(out,
            "\npool %" PRIu32 ", namespace %" PRIu32 ": %" PRIu32 " handles, blocks of %" PRIu32
            " pages\n",
            space->pool, space->space, space->handles, space->block_pages);
    fprintf(out,
            "  holds     %" PRIu32 " blocks, %" PRIu64 " of %" PRIu32
            " pages (%s), low mark %" PRIu32 ", %" PRIu32 " blocks pinned, %" PRIu32
            " claimed, %" PRIu32 " on the host\n",
            space->blocks, pages, space->pages_max,
            attnctl_bytes(pages * space->page_bytes, held, sizeof(held)), space->pages_low,
            space->pinned, space->claims, space->hosted);
    fprintf(
        out,
        "  found     %" PRIu64 " of %" PRIu64 " blocks (%.1f%%), %" PRIu64
        " of them published by another session; %s not computed again\n",
        space->found, space->asked, percent(space->found, space->asked), space->found_foreign,
        attnctl_bytes(space->found * space->block_pages * space->page_bytes, saved, sizeof(saved)));
    fprintf(out,
            "  so far    %" PRIu64 " published, %" PRIu64 " twice, %" PRIu64 " evicted, %" PRIu64
            " waits, %" PRIu64 " claims given up\n",
            space->published, space->duplicate, space->evicted, space->waits, space->abandoned);
    for (size_t i = 0; i < space->n_top; i++)
        fprintf(out, "  %s %08" PRIx32 "  %6" PRIu32 " blocks, found last %" PRIu32 " times\n",
                i ? "         " : "top      ", space->top[i]->mark, space->top[i]->blocks,
                space->top[i]->hits);
}

void attnctl_print_prefix(FILE *out, const Attnd__PrefixStatus *status)
{
    for (size_t i = 0; i < status->n_space; i++)
        print_space(out, status->space[i]);
}

static void print_host_cache(FILE *out, const Attnd__HostCache *cache)
{
    char used[24], most[24], rate[24];

    fprintf(out,
            "host cache: %s of %s; %" PRIu64 " blocks went there, %" PRIu64
            " came back (at %s a second), %" PRIu64 " turned back on the way\n",
            attnctl_bytes(cache->used_bytes, used, sizeof(used)),
            attnctl_bytes(cache->max_bytes, most, sizeof(most)), cache->out_blocks,
            cache->in_blocks, attnctl_bytes(cache->in_bytes_per_s, rate, sizeof(rate)),
            cache->recalled_blocks);
    fprintf(out,
            "            %" PRIu64 " blocks were lost on the way, %" PRIu64
            " not worth bringing back, %" PRIu64 " went for others\n",
            cache->lost_blocks, cache->declined_blocks, cache->evicted_blocks);
}

static void print_head(FILE *out, const Attnd__PrefixStatus *status)
{
    char memory[24];
    fprintf(out, "prefix trees: %" PRIu32 " of %" PRIu32 " blocks touched, %s of the service\n",
            status->blocks_used, status->blocks_max,
            attnctl_bytes(status->memory_bytes, memory, sizeof(memory)));
    if (status->host_cache)
        print_host_cache(out, status->host_cache);
    if (status->n_space == 0)
        fprintf(out, "no namespace is open\n");
}

/* One reply. Return: there is more, from *@first on. */
static bool print_part(const struct attnctl_options *options, uint32_t *first,
                       enum attnctl_exit *code)
{
    Attnd__PrefixQuery query = ATTND__PREFIX_QUERY__INIT;
    Attnd__Reply *reply;

    query.has_first = 1;
    query.first = *first;
    *code = attnctl_ask_for(options->socket_path, ATTND__REQUEST__CALL_PREFIX_QUERY, &query,
                            ATTND__REPLY__RESULT_PREFIX_STATUS, &reply);
    if (*code != ATTNCTL_EXIT_OK)
        return 0;
    const Attnd__PrefixStatus *status = reply->prefix_status;
    if (!options->json && *first == 0)
        print_head(stdout, status);
    if (!options->json)
        attnctl_print_prefix(stdout, status);
    else if (attnd_json_print(stdout, attnd_json_message(&status->base), JSON_COMPACT) < 0)
        *code = ATTNCTL_EXIT_ANSWER;
    const bool more = status->has_next && status->next > *first;
    *first = status->next;
    attnd__reply__free_unpacked(reply, NULL);
    return more && *code == ATTNCTL_EXIT_OK;
}

enum attnctl_exit attnctl_prefix(int argc, char **argv)
{
    static const char doc[] =
        "Show the prefix trees: what each namespace holds, how often its blocks were found, "
        "and at which blocks most matches ended, by the first half of a key's first word.";
    const struct attnctl_options options =
        attnctl_parse(argc, argv, "JSON objects, one for each part of the answer", doc);
    enum attnctl_exit code = ATTNCTL_EXIT_OK;
    uint32_t first = 0;

    while (print_part(&options, &first, &code))
        ;
    if (code == ATTNCTL_EXIT_OK && fflush(stdout) != 0)
        code = ATTNCTL_EXIT_ANSWER;
    return code;
}
