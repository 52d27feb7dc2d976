/*
 * place.h - where rows stand that have keys on several levels.
 */
#ifndef ATTND_PERSISTENT_PLAN_PLACE_H
#define ATTND_PERSISTENT_PLAN_PLACE_H

#include "persistent/plan/private.h"

/* Rows of an entry that have the same entry on each later level (place.c). */
struct attnd_piece_walk {
    uint32_t level, entry;
    uint32_t row, row_end;
    uint32_t behind[ATTND_LEVELS_MAX]; /* entries of later levels */
};

/** attnd_plan_walk_pieces() - those of @level, in the order of rows: for attnd_plan_next_piece().
 */
struct attnd_piece_walk attnd_plan_walk_pieces(const struct attnd_plan *plan, uint32_t level);
/** attnd_plan_next_piece() - Return: 0 if there is none. */
int attnd_plan_next_piece(const struct attnd_plan *plan, struct attnd_piece_walk *walk);
/** attnd_plan_place() - of entries and lengths that are there, of generation 0.
 * Return: 0; -ATTND_E_RANGE more keys than a place can count; -ATTND_E_UNSUPPORTED keys that were
 * rotated when they were stored, and have no place of their own. */
int attnd_plan_place(struct attnd_plan *plan, struct attnd_fault *fault);
/** attnd_plan_check_places() - Return: 0; -ATTND_E_RANGE as attnd_plan_place().
 * @lengths: of all entries, here and below; NULL: those that were set */
int attnd_plan_check_places(const struct attnd_plan *plan, const int32_t *lengths,
                            struct attnd_fault *fault);
/** attnd_plan_write_places() - into the heap, behind the lengths of @generation. */
void attnd_plan_write_places(const struct attnd_plan *plan, uint32_t generation,
                             const int32_t *lengths);
/** attnd_plan_keys_behind() - keys of the piece's rows behind those of its entry. */
int32_t attnd_plan_keys_behind(const struct attnd_plan *plan, const struct attnd_piece_walk *walk,
                               const int32_t *lengths);
/** attnd_plan_in_pieces() - 1: tiles of earlier levels are those of pieces, and know their place.
 */
int attnd_plan_in_pieces(const struct attnd_plan *plan);

#endif
