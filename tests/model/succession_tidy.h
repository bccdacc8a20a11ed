/* One state for all that no step can tell apart: what no longer matters of what ranks have heard is
 * forgotten, and so are attempts that nobody knows. Attempts are in one order, and votes count up
 * from 0: of those of one rank only the order is ever looked at. */
#include "succession_state.h"

#define OTHERS 7 /* whom a rank follows, where it is neither itself nor who is told */

static int comes_through(int b, int base) {
  while (b != 0 && b != base) b = now.a_base[b - 1];
  return b == base;
}
/* It was told that others went on, and is bound by nothing: what it hears changes nothing. */
static int is_done(int i) { return now.out[i] && !now.pending[i]; }
/* It has died, and all can find that out, wherever it is. */
static int buried(int j) {
  for (int i = 0; i < RANKS; ++i) {
    if (now.alive[i] && !is_done(i) && !(now.refused[i] & BIT(j))) return 0;
  }
  return !now.alive[j];
}
/* Whether it matters now to i if it hears j: that j is silent or dead it finds out only then.
 * Before that it could have known as well, and what it does in between it gives up again. */
static int is_looked_at(int i, int j) {
  if (!now.alive[i] || !now.joined[i] || !(members_of(now.base[i]) & BIT(j))) return 0;
  int current = now.current[i] ? BIT(now.current[i] - 1) : 0;
  if (now.follow[i] == i || now.follow[i] == j || now.pending[i] & ~current) return 1;
  return current && !now.confirmed[i] && now.a_members[now.current[i] - 1] & BIT(j);
}

/* Attempts that a rank has confirmed, or may still */
static int hold[RANKS];
static void find_holders(void) {
  for (int r = 0; r < RANKS; ++r) {
    hold[r] = now.pending[r] | (now.current[r] ? BIT(now.current[r] - 1) : 0);
    for (int a = 0; a < now.attempts; ++a) {
      if (now.alive[r] && now.joined[r] && !now.current[r] && now.a_members[a] & BIT(r) &&
          now.a_vote[a * RANKS + r] == now.vote[r]) {
        hold[r] |= BIT(a);
      }
    }
  }
}
/* Attempts of which i may have to know who has left: its own, and those of ranks that could follow
 * it */
static int concern(int i) {
  int concerned = hold[i];
  for (int m = i + 1; m < RANKS; ++m) {
    concerned |=
        hold[m] | S_PENDING(now.known[i * RANKS + m]) | S_PENDING(now.flying[i * RANKS + m]);
  }
  return concerned;
}

/* Of a frame of j, for i: whether it follows i, or could be followed by it, or has decided for it;
 * what it has confirmed, and its vote, by which others see that it has left. */
static int follows_me(int i, int s) { return S_JOINED(s) && S_FREE(s) && S_FOLLOW(s) == i; }
static int what_matters(int i, int j, int s, int concerned) {
  if (!s || is_done(i) || !comes_through(S_BASE(s), now.base[i])) return 0;
  int kept = s & (1 << 30 | 15 << 4 | 15), d = S_DECISION(s);
  for (int a = 0; a < now.attempts;
       ++a) { /* leaders wait for it, and whoever has left may still be bound */
    if (S_PENDING(s) & concerned & BIT(a) &&
        (follows_me(i, s) || (now.current[i] == a + 1 && now.a_leader[a] == i) ||
         S_VOTE(s) > now.a_vote[a * RANKS + j])) {
      kept |= BIT(a) << 17;
    }
  }
  if (follows_me(i, s)) {
    kept |= s & (1 << 16 | 1 << 11 | 7 << 8);
  } else if (S_JOINED(s) && S_FOLLOW(s) == j && j < i) {
    kept |= s & (1 << 11 | 7 << 8);
  } else {
    kept |= OTHERS << 8;
  }
  if (d && now.joined[i] && !now.current[i] && now.follow[i] == j &&
      now.a_members[d - 1] & BIT(i) && now.a_vote[(d - 1) * RANKS + i] == now.vote[i]) {
    kept |= d << 12;
  }
  return kept;
}
/* A late one still says that its sender was heard. */
static int what_matters_late(int i, int j, int s, int concerned) {
  int kept = what_matters(i, j, s, concerned);
  return s && !kept ? 1 << 30 : kept;
}

static int concerns[RANKS], kept_[ATTEMPTS], open_[ATTEMPTS], chain[ATTEMPTS], number[ATTEMPTS + 1];
static int sorted_[ATTEMPTS], votes[RANKS][RANKS][16]; /* by who has heard, and whom */

static void forget(void) {
  find_holders();
  for (int i = 0; i < RANKS; ++i) {
    if (!now.joined[i]) {
      now.follow[i] = i;
      now.silent[i] = now.cut_off[i] = 0;
    }
    if (is_done(i)) now.refused[i] = now.gone[i] = 0;
    concerns[i] = concern(i);
    for (int j = 0; j < RANKS; ++j) {
      int at = i * RANKS + j;
      if (now.alive[i] && !is_done(i)) {
        if (now.joined[i] && members_of(now.base[i]) & BIT(j) && !there(i, j))
          now.cut_off[i] |= BIT(j);
        if (linked(i, j) && !now.alive[j]) now.refused[i] |= BIT(j);
      }
      now.known[at] = what_matters(i, j, now.known[at], concerns[i]);
      if (now.flying[at] && is_done(i)) {
        now.flying[at] = 0;
        now.late++;
      }
      now.flying[at] = what_matters_late(i, j, now.flying[at], concerns[i]);
    }
    now.silent[i] &= members_of(now.base[i]) & ~now.gone[i];
    now.cut_off[i] &= members_of(now.base[i]) & ~now.gone[i];
  }
  for (int i = 0; i < RANKS; ++i) {
    if (buried(i)) now.side[i] = 0;
  }
}
static int tells_of(int s, int a) { return s && (S_DECISION(s) == a + 1 || S_PENDING(s) & BIT(a)); }
static int sort_key(int a) {
  int leader = now.a_leader[a];
  return chain[a] << 20 | !open_[a] << 19 | leader << 16 | now.a_vote[a * RANKS + leader] << 8 |
         now.a_members[a];
}
static void number_attempts(void) {
  int left = 0;
  for (int a = now.attempts - 1; a >= 0; --a) { /* bases come before what follows them */
    kept_[a] = open_[a] = chain[a] = 0;
    for (int r = 0; r < RANKS; ++r) {
      open_[a] |= now.current[r] == a + 1 || now.pending[r] & BIT(a);
      kept_[a] |= now.base[r] == a + 1;
      for (int j = 0; j < RANKS; ++j) {
        int known = now.known[r * RANKS + j], flying = now.flying[r * RANKS + j];
        open_[a] |= tells_of(known, a) || tells_of(flying, a);
        kept_[a] |= (known && S_BASE(known) == a + 1) || (flying && S_BASE(flying) == a + 1);
      }
    }
    open_[a] = !!open_[a];
    kept_[a] |= open_[a];
    for (int b = a + 1; b < now.attempts; ++b) kept_[a] |= kept_[b] && now.a_base[b] == a + 1;
    for (int b = a + 1; b != 0; b = now.a_base[b - 1]) ++chain[a];
    if (!open_[a]) {
      now.a_leader[a] = 0;
      for (int r = 0; r < RANKS; ++r) now.a_vote[a * RANKS + r] = 0;
    }
  }
  for (int a = 0; a < now.attempts; ++a) {
    number[a + 1] = 0;
    if (!kept_[a]) continue;
    int at = left++;
    for (; at > 0 && sort_key(sorted_[at - 1]) > sort_key(a); --at) sorted_[at] = sorted_[at - 1];
    sorted_[at] = a;
  }
  for (int to = 0; to < left; ++to) number[sorted_[to] + 1] = to + 1;
  now.attempts = left;
}
static int bounds_for(int i, int r, int bounds, int before) {
  for (int a = 0; a < before; ++a) {
    if (open_[a] && now.a_members[a] & BIT(r) && (i == r || concerns[i] & BIT(a))) {
      bounds |= BIT(now.a_vote[a * RANKS + r]);
    }
  }
  return bounds;
}
/* A vote that was heard stands for all that are later than the same votes of attempts that concern
 * who heard it, or of such as may come: those of frames to whom their sender follows. */
static void number_votes(int before) {
  for (int r = 0; r < RANKS; ++r) {
    int bounds = now.alive[r] ? BIT(now.vote[r]) : 0, all = 0, next = 0, numbers[16];
    for (int i = 0; i < RANKS; ++i) {
      int known = now.known[i * RANKS + r], flying = now.flying[i * RANKS + r];
      if (known && follows_me(i, known)) bounds |= BIT(S_VOTE(known));
      if (flying && follows_me(i, flying)) bounds |= BIT(S_VOTE(flying));
    }
    for (int i = 0; i < RANKS; ++i) all |= bounds_for(i, r, bounds, before);
    for (int v = 0; v < 16; ++v) numbers[v] = all & BIT(v) ? next++ : -1;
    for (int i = 0; i < RANKS; ++i) {
      int mine = i == r ? all : bounds_for(i, r, bounds, before),
          lowest = next; /* beyond all: of a dead rank */
      for (int v = 15; v >= 0; --v) {
        if (mine & BIT(v)) lowest = numbers[v];
        votes[i][r][v] = lowest;
      }
    }
  }
}
static int bits_renumbered(int bits) {
  int renumbered = 0;
  for (int a = 0; a < ATTEMPTS; ++a) {
    if (bits & BIT(a) && number[a + 1]) renumbered |= BIT(number[a + 1] - 1);
  }
  return renumbered;
}
static int renumbered(int s, int i, int j) {
  if (!s || s == 1 << 30) return s;
  return (s & (1 << 30 | 1 << 16 | 15 << 8)) | votes[i][j][S_VOTE(s)] | number[S_BASE(s)] << 4 |
         number[S_DECISION(s)] << 12 | bits_renumbered(S_PENDING(s)) << 17;
}
static void tidy(void) {
  int before = now.attempts, bases[ATTEMPTS], leaders[ATTEMPTS], members[ATTEMPTS];
  int given[ATTEMPTS][RANKS], worked = 0;
  forget();
  number_attempts();
  number_votes(before);
  for (int a = 0; a < before; ++a) {
    bases[a] = now.a_base[a];
    leaders[a] = now.a_leader[a];
    members[a] = now.a_members[a];
    for (int r = 0; r < RANKS; ++r) given[a][r] = now.a_vote[a * RANKS + r];
  }
  for (int to = 0; to < before; ++to) {
    int a = to < now.attempts ? sorted_[to] : -1;
    now.a_base[to] = a < 0 ? 0 : number[bases[a]];
    now.a_leader[to] = a < 0 ? 0 : leaders[a];
    now.a_members[to] = a < 0 ? 0 : members[a];
    if (a >= 0 && now.worked & BIT(a)) worked |= BIT(to);
    for (int r = 0; r < RANKS; ++r) {
      int in = a >= 0 && open_[a] && members[a] & BIT(r);
      now.a_vote[to * RANKS + r] = in ? votes[r][r][given[a][r]] : 0;
    }
  }
  now.worked = worked;
  for (int r = 0; r < RANKS; ++r) {
    now.pending[r] = bits_renumbered(now.pending[r]);
    now.base[r] = number[now.base[r]];
    now.current[r] = number[now.current[r]];
    if (now.alive[r]) now.vote[r] = votes[r][r][now.vote[r]];
    for (int i = 0; i < RANKS; ++i) {
      now.known[i * RANKS + r] = renumbered(now.known[i * RANKS + r], i, r);
      now.flying[i * RANKS + r] = renumbered(now.flying[i * RANKS + r], i, r);
    }
  }
}
