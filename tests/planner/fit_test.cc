// Fits find the costs that measurements were made from, in spite of noise and hiccups.

#include "gradwire/planner/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/cost_file.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

std::vector<ProbePoint> line_of(double alpha_s, double bytes_per_s, double noise, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> off(1 - noise, 1 + noise);
  std::vector<ProbePoint> points;
  for (double bytes = 64; bytes < 1e8; bytes *= 2) {
    points.push_back({bytes, (alpha_s + bytes / bytes_per_s) * off(random)});
  }
  return points;
}

TEST(FitLine, FindsTheExactLine) {
  const LineFit fit = fit_line(line_of(50e-6, 1.2e9, 0, 1));
  EXPECT_NEAR(fit.alpha_s, 50e-6, 1e-12);
  EXPECT_NEAR(fit.bytes_per_s, 1.2e9, 1);
  EXPECT_LT(fit.quality.largest_error, 1e-9);
  EXPECT_EQ(fit.quality.outliers, 0u);
}

TEST(FitLine, FindsItThroughNoiseAndHiccups) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> unit(0, 1);
    const double alpha = std::pow(10, -6 + 3 * unit(random));
    const double rate = std::pow(10, 7 + 4 * unit(random));
    std::vector<ProbePoint> points = line_of(alpha, rate, 0.03, seed);
    points[3].seconds *= 20;  // the machine did something else
    points[points.size() - 4].seconds *= 5;
    const LineFit fit = fit_line(points);
    for (const ProbePoint& point : points) {
      const double fitted = fit.alpha_s + point.bytes / fit.bytes_per_s;
      ASSERT_NEAR(fitted / (alpha + point.bytes / rate), 1, 0.04)
          << point.bytes << " bytes, seed " << seed;
    }
    ASSERT_GE(fit.quality.outliers, 2u) << "seed " << seed;
    ASSERT_GT(fit.quality.residuals[3], 10) << "seed " << seed;
  }
}

TEST(FitLine, RefusesNonsense) {
  using Points = std::vector<ProbePoint>;
  for (const Points& points :
       {Points{}, Points{{1, 1}, {2, 2}}, Points{{5, 1}, {5, 2}, {5, 3}},
        Points{{1, 1}, {2, 0}, {3, 3}}, Points{{1, 1}, {2, -1}, {3, 3}},
        Points{{1, 1}, {2, NAN}, {3, 3}}, Points{{-1, 1}, {2, 2}, {3, 3}},
        Points{{1, 1}, {INFINITY, 2}, {3, 3}}, Points{{1, 3}, {2, 2}, {3, 1}},  // falls
        Points{{1, 2}, {2, 2}, {3, 2}, {4, 2}}}) {                              // does not grow
    EXPECT_THROW(fit_line(points), InvalidArgument) << points.size();
  }
  EXPECT_THROW(fit_line(line_of(1e-5, 1e9, 0.4, 7), {.most_median_error = 0.01}), InvalidArgument);
}

TEST(FitTable, TakesMediansThatNeverFall) {
  const std::vector<ProbePoint> points{{100, 1}, {100, 9}, {100, 2},   // median 2
                                       {200, 5}, {400, 3}, {800, 8}};  // 5 and 3 pool to 4
  const TableFit fit = fit_table(points, {.most_median_error = 1});
  const std::vector<SizeTable::Point> expected{{100, 2}, {200, 4}, {400, 4}, {800, 8}};
  EXPECT_TRUE(std::ranges::equal(fit.table.points(), expected));
  EXPECT_DOUBLE_EQ(fit.quality.largest_error, 3.5);
  EXPECT_THROW(fit_table(std::vector<ProbePoint>{{1, 2}, {2, 1}}), InvalidArgument);
  EXPECT_THROW(fit_table(std::vector<ProbePoint>{{1, 2}, {1, 3}}), InvalidArgument);
}

TEST(FitStreams, FindsTheCapOfAStreamAndOfTheLine) {
  std::vector<StreamPoint> points;
  for (const int streams : {1, 2, 3, 4, 6, 8, 16}) {
    points.push_back({streams, std::min(9e9, streams * 2e9) * (streams % 2 == 0 ? 1.02 : 0.98)});
  }
  const StreamFit fit = fit_streams(points);
  EXPECT_NEAR(fit.stream_bytes_per_s, 2e9, 0.03 * 2e9);
  EXPECT_NEAR(fit.most_bytes_per_s, 9e9, 0.03 * 9e9);
  EXPECT_TRUE(fit.levels_off);

  points.resize(3);  // 1, 2, 3 streams: all on the rise
  const StreamFit rising = fit_streams(points);
  EXPECT_FALSE(rising.levels_off);
  EXPECT_NEAR(rising.stream_bytes_per_s, 2e9, 0.03 * 2e9);
  EXPECT_THROW(fit_streams({}), InvalidArgument);
  EXPECT_THROW(fit_streams(std::vector<StreamPoint>{{0, 1}}), InvalidArgument);
  EXPECT_THROW(fit_streams(std::vector<StreamPoint>{{1, 0}}), InvalidArgument);
}

constexpr const char* kFile =
    "gradwire-costs 1\n"
    "machine two hosts\n"
    "link 5e-05 1.25e+09 0.9 4e+08 eth0 of a\n"
    "cpu 2e-05 1.5e+09\n"
    "table * 1 64 6e-05 1e+06 0.0025\n"
    "table ring 2 64 5e-05 1e+06 0.0015\n"
    "node_link 1e-06 1e+10 1 0 memory\n"
    "codec int4 1e-05 2e+09 1e-05 4e+09\n"
    "codec topk:1% 5e-05 1e+09 2e-05 0\n";

TEST(CostFiles, AreReadAsTheyWereWritten) {
  const CostFile file = read_costs(kFile);
  EXPECT_EQ(file.machine, "two hosts");
  EXPECT_EQ(file.costs.link.name, "eth0 of a");
  EXPECT_EQ(file.costs.link.stream_bytes_per_s, 4e8);
  EXPECT_DOUBLE_EQ(file.costs.link.message_seconds(1e6, "ring", 2), 0.0015);
  EXPECT_DOUBLE_EQ(file.costs.link.cpu_seconds(6, 3e6), 6 * (2e-5 + 0.002));
  EXPECT_EQ(file.costs.node_link.bytes_per_s, 1e10);
  EXPECT_EQ(file.costs.node_link.cpu_seconds(6, 3e6), 0);
  EXPECT_EQ(file.costs.codecs.at("topk:1%").encode_floor_s, 5e-5);
  EXPECT_EQ(write_costs(file), kFile);
}

TEST(CostFiles, NameTheLineThatIsWrong) {
  const auto message = [](const std::string& text) {
    return message_of([&] { read_costs(text); });
  };
  const std::string start = "gradwire-costs 1\n", link = "link 0 1e9 1 0 a\n";
  EXPECT_EQ(message(""), "costs: no text, expected a first line 'gradwire-costs 1'");
  EXPECT_EQ(message("gradwire-costs 2\n"),
            "costs: line 1 is 'gradwire-costs 2', expected 'gradwire-costs 1'");
  EXPECT_EQ(message(start), "costs: 1 lines without a link, expected one");
  EXPECT_EQ(message(start + "link 0 0 1 0 a\n"),
            "costs: line 2: link 'a': bandwidth is 0 bytes/s, must be positive and finite");
  EXPECT_EQ(message(start + link + link), "costs: line 3: a second link, expected one");
  EXPECT_EQ(message(start + "# words\n\n" + link + "codec int4 1 1 1\n"),
            "costs: line 5: has no decode rate");
  EXPECT_EQ(message(start + link + "codec int4 1 1 1 1 1\n"),
            "costs: line 3: '1' is more than expected");
  EXPECT_EQ(message(start + link + "codec int4 1 1 x 1\n"),
            "costs: line 3: decode floor is 'x', expected a number");
  EXPECT_NE(message(start + link + "table * 1 5 1 5 2\n").find("line 3: size table: point 1"),
            std::string::npos);
  EXPECT_NE(message(start + link + "table * 0 5 1 6 2\n").find("streams is 0"), std::string::npos);
  EXPECT_NE(message(start + "table * 1 5 1 6 2\n").find("before its link"), std::string::npos);
  EXPECT_EQ(message(start + "cpu 1 1\n"), "costs: line 2: processor time stands before its link");
  EXPECT_EQ(message(start + link + "cpu 1 1\ncpu 1 1\n"),
            "costs: line 4: a second processor time, expected one");
  EXPECT_EQ(message(start + link + "cpu -1 1\n"),
            "costs: line 3: link 'a': a message takes -1 s of a processor, must be finite and at "
            "least 0");
  EXPECT_NE(message(start + link + "speed 5\n").find("unknown word 'speed', known:"),
            std::string::npos);
  EXPECT_NE(message(start + link + "codec a 1 1 1 -1\n").find("decode rate (bytes/s) is -1"),
            std::string::npos);
}

}  // namespace
}  // namespace gradwire::planner
