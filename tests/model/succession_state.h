/* The state of succession.pml as its steps see it. */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 8
#endif

extern void (*uerror)(char *);
#define require(x) ((x) ? (void)0 : uerror("assertion violated: " #x))
#define BIT(x) (1 << (x))
#define S_VOTE(s) ((s) & 15)
#define S_BASE(s) (((s) >> 4) & 15)
#define S_FOLLOW(s) (((s) >> 8) & 7)
#define S_JOINED(s) (((s) >> 11) & 1)
#define S_DECISION(s) (((s) >> 12) & 15)
#define S_FREE(s) (((s) >> 16) & 1)
#define S_PENDING(s) (((s) >> 17) & 255)

/* For whoever reads a trail: pan -r. */
static void show(void) {
  for (int i = 0; i < RANKS; ++i) {
    printf("rank %d: alive %d side %d vote %d base %d follow %d joined %d out %d current %d confirmed %d "
           "pending %x gone %x silent %x\n", i, now.alive[i], now.side[i], now.vote[i], now.base[i],
           now.follow[i], now.joined[i], now.out[i], now.current[i], now.confirmed[i], now.pending[i],
           now.gone[i], now.silent[i]);
  }
  for (int a = 0; a < now.attempts; ++a) {
    printf("attempt %d: base %d leader %d members %x\n", a + 1, now.a_base[a], now.a_leader[a],
           now.a_members[a]);
  }
}

static int linked(int i, int j) { return now.side[i] == now.side[j]; }
static int there(int i, int j) { return linked(i, j) && now.alive[j]; }
static int heard(int i, int j) { return i == j || !((now.silent[i] | now.gone[i]) & BIT(j)); }
static int members_of(int b) { return b == 0 ? BIT(RANKS) - 1 : now.a_members[b - 1]; }
static int count(int mask) { return __builtin_popcount(mask); }

/* A frame. Bit 30 makes it no zero. */
static int status(int j) {
  int c = now.current[j], leads = c && now.a_leader[c - 1] == j;
  return 1 << 30 | now.vote[j] | now.base[j] << 4 | now.follow[j] << 8 | now.joined[j] << 11 |
         (leads ? c : 0) << 12 | (c == 0) << 16 | now.pending[j] << 17;
}
/* The same state by the same numbers: attempts of which nobody knows are forgotten, and the votes of a rank
 * count up from 0. Only their order is ever looked at. */
static int knows_attempt(int s, int a) {
  return s && (S_BASE(s) == a + 1 || S_DECISION(s) == a + 1 || S_PENDING(s) & BIT(a));
}
static int renumbered(int s, const int *number, const int *votes) {
  int pending = 0;
  if (!s) return 0;
  for (int a = 0; a < ATTEMPTS; ++a) pending |= S_PENDING(s) & BIT(a) ? BIT(number[a + 1] - 1) : 0;
  return (s & (1 << 30 | 15 << 8 | 1 << 16)) | votes[S_VOTE(s)] | number[S_BASE(s)] << 4 |
         number[S_DECISION(s)] << 12 | pending << 17;
}
static void tidy(void) {
  int kept[ATTEMPTS], number[ATTEMPTS + 1] = {0}, left = 0;
  for (int a = now.attempts - 1; a >= 0; --a) { /* bases come before what follows them */
    kept[a] = 0;
    for (int r = 0; r < RANKS; ++r) {
      kept[a] |= now.base[r] == a + 1 || now.current[r] == a + 1 || now.pending[r] & BIT(a);
      for (int j = 0; j < RANKS; ++j) {
        kept[a] |= knows_attempt(now.known[r * RANKS + j], a) || knows_attempt(now.flying[r * RANKS + j], a);
      }
    }
    for (int b = a + 1; b < now.attempts; ++b) kept[a] |= kept[b] && now.a_base[b] == a + 1;
  }
  for (int a = 0; a < now.attempts; ++a) number[a + 1] = kept[a] ? ++left : 0;
  int votes[RANKS][16];
  for (int r = 0; r < RANKS; ++r) {
    int used[16] = {0}, next = 0;
    used[now.vote[r]] = 1;
    for (int i = 0; i < RANKS; ++i) {
      int s = now.known[i * RANKS + r], f = now.flying[i * RANKS + r];
      if (s) used[S_VOTE(s)] = 1;
      if (f) used[S_VOTE(f)] = 1;
    }
    for (int a = 0; a < now.attempts; ++a) {
      if (kept[a] && now.a_members[a] & BIT(r)) used[now.a_vote[a * RANKS + r]] = 1;
    }
    for (int v = 0; v < 16; ++v) votes[r][v] = used[v] ? next++ : 0;
  }
  int worked = 0;
  for (int a = 0; a < now.attempts; ++a) {
    int to = number[a + 1] - 1;
    if (to < 0) continue;
    worked |= now.worked & BIT(a) ? BIT(to) : 0;
    now.a_base[to] = number[now.a_base[a]];
    now.a_leader[to] = now.a_leader[a];
    now.a_members[to] = now.a_members[a];
    for (int r = 0; r < RANKS; ++r) {
      int in = now.a_members[a] & BIT(r);
      now.a_vote[to * RANKS + r] = in ? votes[r][now.a_vote[a * RANKS + r]] : 0;
    }
  }
  for (int a = left; a < ATTEMPTS; ++a) {
    now.a_base[a] = now.a_leader[a] = now.a_members[a] = 0;
    for (int r = 0; r < RANKS; ++r) now.a_vote[a * RANKS + r] = 0;
  }
  now.worked = worked;
  now.attempts = left;
  for (int r = 0; r < RANKS; ++r) {
    int pending = 0;
    for (int a = 0; a < ATTEMPTS; ++a) pending |= now.pending[r] & BIT(a) ? BIT(number[a + 1] - 1) : 0;
    now.pending[r] = pending;
    now.base[r] = number[now.base[r]];
    now.current[r] = number[now.current[r]];
    now.vote[r] = votes[r][now.vote[r]];
    for (int i = 0; i < RANKS; ++i) {
      now.known[i * RANKS + r] = renumbered(now.known[i * RANKS + r], number, votes[r]);
      now.flying[i * RANKS + r] = renumbered(now.flying[i * RANKS + r], number, votes[r]);
    }
  }
}
