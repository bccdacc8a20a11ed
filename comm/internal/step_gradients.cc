#include "gradwire/comm/internal/step_gradients.h"

#include <algorithm>

namespace gradwire {
namespace {

constexpr size_t kNamedParameters = 5;  // in a message about missing ones

}  // namespace

void StepGradients::begin_step(const Plan& plan, uint64_t step) {
  plan_ = &plan;
  step_ = step;
  begun_ = any_ready_ = false;
  given_.assign(plan.parameters.size(), Given::kNothing);
  reached_.assign(plan.parameters.size(), 1);
  ready_us_.assign(plan.parameters.size(), 0);
  missing_.assign(plan.buckets.size(), 0);
  for (const Plan::Place& place : plan.places) {
    ++missing_[place.bucket];
  }
  members_ = missing_;
}

void StepGradients::check_not_ready(std::string_view call, ParamId p) const {
  check(p < given_.size(), call, ": parameter ", p, " is not in the plan of ", given_.size(),
        " parameters");
  check(!is_ready(p), call, ": parameter ", p, " ('", plan_->parameters[p].name,
        "') is already ready in step ", step_, ", expected once a step");
}

void StepGradients::check_none_ready(std::string_view call, BucketId b) const {
  check(missing_[b] == members_[b], call, ": ", members_[b] - missing_[b], " of ", members_[b],
        " parameters of bucket ", b, " are already ready in step ", step_, ", expected none");
}

void StepGradients::check_not_begun(std::string_view call) const {
  check(!begun_, call, ": step ", step_,
        " has begun, expected a call between wait() and the next grad_ready()");
}

void StepGradients::check_all_ready() const {
  const auto ready = std::ranges::count(given_, Given::kReady);
  const size_t missing = given_.size() - static_cast<size_t>(ready);
  std::string names;
  size_t named = 0;
  for (ParamId p = 0; p < given_.size() && named < kNamedParameters; ++p) {
    if (!is_ready(p)) {
      names += concat(named++ == 0 ? "" : ", ", "'", plan_->parameters[p].name, "'");
    }
  }
  check(missing == 0, "wait: ", missing, " of ", given_.size(),
        " parameters have no gradient in step ", step_, ": ", names, missing > named ? ", ..." : "",
        ", expected grad_ready() for each");
}

bool StepGradients::add(ParamId p) {
  begun_ = true;
  return std::exchange(given_[p], Given::kAccumulated) == Given::kAccumulated;
}

bool StepGradients::set_ready(ParamId p, int64_t now_us) {
  note_ready(p, now_us);
  return --missing_[plan_->places[p].bucket] == 0;
}

void StepGradients::set_bucket_ready(BucketId b, int64_t now_us) {
  missing_[b] = 0;
  for (ParamId p = 0; p < given_.size(); ++p) {
    if (plan_->places[p].bucket == b) {
      note_ready(p, now_us);
    }
  }
}

void StepGradients::note_ready(ParamId p, int64_t now_us) {
  if (!any_ready_) {
    any_ready_ = begun_ = true;
    first_ready_us_ = now_us;
  }
  given_[p] = Given::kReady;
  ready_us_[p] = now_us;
}

bool StepGradients::set_unused(ParamId p) {
  reached_[p] = given_[p] != Given::kNothing;
  return reached_[p] == 0;
}

std::string StepGradients::how_many_ready() const {
  return concat(std::ranges::count(given_, Given::kReady), " of ", given_.size());
}

}  // namespace gradwire
