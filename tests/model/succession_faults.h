/* What happens to ranks, what must be true in the end, and when each step can be taken. spin takes no calls in its
 * guards, so that they are macros. */
#include "succession_steps.h"

/* What must be where nothing happens any more */
static int at_peace_is_right(void) {
#if defined(OLD_RULE) || defined(UNBOUND)
  return 1; /* they are asked for two groups alone */
#endif
  for (int i = 0; i < RANKS; ++i) {
    int here = 0, dead = 0, newest = 0, works = 0, bound = 0;
    if (!now.alive[i]) continue;
    for (int j = 0; j < RANKS; ++j) {
      if (!now.alive[j] && now.refused[i] & BIT(j)) dead |= BIT(j);
      if (!now.alive[j] || !linked(i, j) || now.out[j]) continue; /* who was told that others went on ends */
      here |= BIT(j);
      if (now.base[j] > newest) newest = now.base[j]; /* attempts count up along a chain */
      if (now.base[j] && !now.joined[j] && !now.out[j]) works |= BIT(j);
    }
    for (int j = 0; j < RANKS; ++j) {
      for (int a = 0; here & BIT(j) && a < now.attempts; ++a) {
        bound |= now.pending[j] & BIT(a) && could_go_on(now.a_members[a] & ~here & ~dead, a);
      }
    }
    if (2 * count(here & members_of(newest)) > count(members_of(newest)) && !bound && !works) return 0;
  }
  return 1;
}
/* All have heard each other once, and follow nobody yet. */
static void meet(void) {
  for (int i = 0; i < RANKS; ++i) {
    for (int j = 0; j < RANKS; ++j) {
      if (i != j) now.known[i * RANKS + j] = status(j);
    }
  }
}
/* What it knew does not matter any more. */
static void kill_rank(int k) {
  now.alive[k] = 0;
  now.vote[k] = now.base[k] = now.follow[k] = now.joined[k] = now.out[k] = now.current[k] = 0;
  now.confirmed[k] = now.pending[k] = now.gone[k] = now.silent[k] = now.cut_off[k] = now.refused[k] = 0;
  for (int j = 0; j < RANKS; ++j) {
    now.known[k * RANKS + j] = 0;
    now.late += now.flying[k * RANKS + j] != 0;
    now.flying[k * RANKS + j] = 0;
  }
}
static void cut(int mask) {
  for (int r = 0; r < RANKS; ++r) now.side[r] = (mask >> r) & 1;
}

static int can_send(int i, int j) {
  find_holders();
  return now.alive[i] && now.alive[j] && linked(i, j) && !now.flying[i * RANKS + j] &&
         (what_matters(i, j, status(j), concern(i)) != now.known[i * RANKS + j] || now.silent[i] & BIT(j));
}
static int can_find_gone(int i, int j) {
  return now.refused[i] & BIT(j) && !(now.gone[i] & BIT(j)) && is_looked_at(i, j);
}
/* One that changes something */
static int can_cut(int mask) {
  int moved = 0, mirrored = 0;
  for (int r = 0; r < RANKS; ++r) {
    if (buried(r)) continue;
    moved |= now.side[r] != ((mask >> r) & 1);
    mirrored |= now.side[r] == ((mask >> r) & 1);
  }
  return moved && mirrored;
}

static int something_can_happen(void) {
  for (int i = 0; i < RANKS; ++i) {
    if (can_connect(i) || can_fail(i) || can_join(i) || can_begin(i)) return 1;
    for (int j = 0; j < RANKS; ++j) {
      if (i != j && (now.flying[i * RANKS + j] || can_send(i, j) || can_notice(i, j) || can_find_gone(i, j))) {
        return 1;
      }
    }
  }
  return 0;
}
static void settle(void) {
  tidy();
  if (something_can_happen()) return;
  int went_on = at_peace_is_right();
  if (!went_on) show();
  require(went_on);
}

#define CAN_CONNECT (can_connect(Prank->i))
#define CAN_FAIL (can_fail(Prank->i))
#define CAN_JOIN (can_join(Prank->i))
#define CAN_BEGIN (can_begin(Prank->i))
#define CAN_SEND (can_send(Pwire->i, Pwire->j))
#define CAN_SEND_LATE (now.late && CAN_SEND)
#define CAN_ARRIVE (now.alive[Pwire->i] && now.flying[Pwire->i * RANKS + Pwire->j])
#define CAN_VANISH (now.flying[Pwire->i * RANKS + Pwire->j] && !there(Pwire->i, Pwire->j))
#define CAN_NOTICE (can_notice(Pwire->i, Pwire->j))
#define CAN_MISS (can_miss(Pwire->i, Pwire->j))
#define CAN_FIND_GONE (can_find_gone(Pwire->i, Pwire->j))
#define CAN_DIE (now.kills && now.alive[Prank->i])
#define CAN_CUT (now.cuts && can_cut(Pnetwork->these))
