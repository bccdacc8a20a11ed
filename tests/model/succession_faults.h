/* What happens to ranks, what must be true in the end, and when each step can be taken. spin takes
 * no calls in its guards, so that they are macros. */
#include "succession_steps.h"

/* What must be where nothing happens any more */
static int at_peace_is_right(void) {
#if defined(OLD_RULE) || defined(UNBOUND)
  return 1; /* they are asked for two groups alone */
#endif
  for (int i = 0; i < RANKS; ++i) {
    int here = 0, dead = 0, newest = now.base[i], works = 0, bound = 0;
    if (!now.alive[i]) continue;
    for (int j = 0; j < RANKS; ++j) {
      if (!now.alive[j] && (linked(i, j) || buried(j))) dead |= BIT(j);
      if (!now.alive[j] || !linked(i, j) || now.out[j])
        continue; /* who was told that others went on ends */
      here |= BIT(j);
      if (comes_through(now.base[j], newest)) newest = now.base[j];
      if (now.base[j] && !now.joined[j] && !now.out[j]) works |= BIT(j);
    }
    for (int j = 0; j < RANKS; ++j) { /* who has begun another group goes on from that one */
      if (here & BIT(j) && !comes_through(newest, now.base[j])) here &= ~BIT(j);
    }
    for (int j = 0; j < RANKS; ++j) {
      for (int a = 0; here & BIT(j) && a < now.attempts; ++a) {
        bound |= now.pending[j] & BIT(a) && could_go_on(now.a_members[a] & ~here & ~dead, a);
      }
    }
    if (2 * count(here & members_of(newest)) > count(members_of(newest)) && !bound && !works)
      return 0;
  }
  return 1;
}
/* All have heard each other once, and follow the lowest. (Who then notices that it does not hear it
 * leaves it before anybody hears of that.) */
static void meet(void) {
  for (int i = 0; i < RANKS; ++i) {
    for (int j = 0; j < RANKS; ++j) {
      if (i != j) now.known[i * RANKS + j] = status(j);
    }
  }
  for (int i = 0; i < RANKS; ++i) react(i);
}
/* What it knew does not matter any more. */
static void kill_rank(int k) {
  now.alive[k] = 0;
  now.vote[k] = now.base[k] = now.follow[k] = now.joined[k] = now.out[k] = now.current[k] = 0;
  now.confirmed[k] = now.pending[k] = now.gone[k] = now.silent[k] = now.cut_off[k] =
      now.refused[k] = 0;
  for (int j = 0; j < RANKS; ++j) {
    now.known[k * RANKS + j] = 0;
    now.late += now.flying[k * RANKS + j] != 0;
    now.flying[k * RANKS + j] = 0;
  }
}
static void cut(int mask) {
  for (int r = 0; r < RANKS; ++r) now.side[r] = (mask >> r) & 1;
}

/* What it has heard already means more now: it is told again and again */
static int catches_up(int i, int j) {
  int next = next_group(i, now.known[i * RANKS + j]);
  return next >= 0 && may_adopt(i, next);
}
static int can_hear(int i, int j) {
  return now.alive[i] && now.alive[j] && linked(i, j) && !now.flying[i * RANKS + j] &&
         (catches_up(i, j) ||
          what_matters(i, j, status(j), concerns[i]) != now.known[i * RANKS + j] ||
          now.silent[i] & BIT(j));
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

#define CONNECT 1
#define FAIL 2
#define BEGIN 4
/* What can happen after a step. Whoever is not told any more, knows nothing new and waits for
 * nothing is at peace. */
static void settle(void) {
  int anything = 0;
  tidy();
  find_holders();
  for (int i = 0; i < RANKS; ++i) {
    now.can[i] =
        (can_connect(i) ? CONNECT : 0) | (can_fail(i) ? FAIL : 0) | (can_begin(i) ? BEGIN : 0);
    now.can_hear[i] = now.can_notice[i] = now.can_find_gone[i] = 0;
    concerns[i] = concern(i);
    for (int j = 0; j < RANKS; ++j) {
      if (i == j) continue;
      now.can_hear[i] |= can_hear(i, j) ? BIT(j) : 0;
      now.can_notice[i] |= can_notice(i, j) ? BIT(j) : 0;
      now.can_find_gone[i] |= can_find_gone(i, j) ? BIT(j) : 0;
      anything |= now.flying[i * RANKS + j] != 0;
    }
    anything |= now.can[i] | now.can_hear[i] | now.can_notice[i] | now.can_find_gone[i];
  }
  if (anything) return;
  int went_on = at_peace_is_right();
  if (!went_on) show();
  require(went_on);
}

#define CAN_CONNECT (now.can[Prank->i] & CONNECT)
#define CAN_FAIL (now.can[Prank->i] & FAIL)
#define CAN_BEGIN (now.can[Prank->i] & BEGIN)
#define CAN_SEND (now.can_hear[Pwire->i] & BIT(Pwire->j))
#define CAN_SEND_LATE (now.late && CAN_SEND)
#define CAN_ARRIVE (now.flying[Pwire->i * RANKS + Pwire->j] && now.alive[Pwire->i])
#define CAN_VANISH (now.flying[Pwire->i * RANKS + Pwire->j] && !there(Pwire->i, Pwire->j))
#define CAN_NOTICE (now.can_notice[Pwire->i] & BIT(Pwire->j))
#define CAN_MISS (can_miss(Pwire->i, Pwire->j))
#define CAN_FIND_GONE (now.can_find_gone[Pwire->i] & BIT(Pwire->j))
#define CAN_DIE (now.kills && now.alive[Prank->i])
#define CAN_CUT (now.cuts && can_cut(Pnetwork->these))
