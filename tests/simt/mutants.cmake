# Kernels with one fault each, put in by text replacement at configure time; the tests must fail on
# every one of them. Built when the test runs: a sample of them in ctest, all in ./run.sh soak.

set_property(GLOBAL PROPERTY GRADWIRE_SIMT_MUTANTS "")

# gradwire_simt_mutant(<name> [COMPRESSORS|OPTIMIZERS|TRAINER] FILE x.cuh SOURCE x_cuda.cu
#                      FROM text TO text TESTS filter)
# COMPRESSORS: the tests are those of simt_compress_test. OPTIMIZERS: the files are optimizers/'s, the
# tests those of simt_optimizers_test. TRAINER: bench/trainer's, and those of simt_trainer_test.
# READS as well: the file is kernels/ops' all the same, and the source optimizers/'.
function(gradwire_simt_mutant name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "COMPRESSORS;OPTIMIZERS;READS;TRAINER"
                        "FILE;SOURCE;FROM;TO;TESTS" "")
  set(from ${ops})
  set(within gradwire/kernels/ops)
  set(more "")
  set(tests simt_tests)
  set(others simt_kernels)
  if(arg_COMPRESSORS)
    set(tests simt_compress_tests)
  elseif(arg_OPTIMIZERS)
    set(from ${optimizers})
    set(within gradwire/optimizers)
    set(tests simt_optimizer_tests)
    set(others simt_optimizer_kernels)
    set(more $<TARGET_OBJECTS:simt_kernels>)
  elseif(arg_TRAINER)
    if(NOT TARGET simt_trainer_tests)
      return()
    endif()
    set(from ${PROJECT_SOURCE_DIR}/bench/trainer)
    set(within bench/trainer)
    set(tests simt_trainer_tests)
    set(others simt_trainer_kernels)
  endif()
  set(source ${from}/${arg_SOURCE})
  if(arg_READS)
    set(from ${ops})
    set(within gradwire/kernels/ops)
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${from}/${arg_FILE})
  file(READ ${from}/${arg_FILE} text)
  string(FIND "${text}" "${arg_FROM}" at)
  if(at LESS 0)
    message(FATAL_ERROR "mutant ${name}: ${arg_FILE} has no text '${arg_FROM}'")
  endif()
  string(REPLACE "${arg_FROM}" "${arg_TO}" text "${text}")
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/mutants/${name})
  file(GENERATE OUTPUT ${folder}/${within}/${arg_FILE} CONTENT "${text}")
  gradwire_simt_kernels(simt_mutant_${name}_kernels ${source})
  target_include_directories(simt_mutant_${name}_kernels BEFORE PRIVATE ${folder})
  gradwire_simt_program(simt_mutant_${name} ${tests} simt_mutant_${name}_kernels EXCLUDE_FROM_ALL)
  # All other kernels are emulated too: a test must fail because of the fault. They come last, so
  # that an inline function of both is the faulty one.
  cmake_path(GET arg_SOURCE STEM stem)
  target_sources(simt_mutant_${name} PRIVATE
                 "$<FILTER:$<TARGET_OBJECTS:${others}>,EXCLUDE,/${stem}[.]cu>" ${more})
  if(arg_TRAINER)
    target_link_libraries(simt_mutant_${name} PRIVATE gradwire_trainer_pieces)
  endif()
  add_dependencies(simt_mutants simt_mutant_${name})
  set_property(GLOBAL APPEND PROPERTY GRADWIRE_SIMT_MUTANTS
               "$<TARGET_FILE:simt_mutant_${name}>|${arg_TESTS}")
endfunction()

add_custom_target(simt_mutants)

gradwire_simt_mutant(residual_sum FILE records.cuh SOURCE quantize_cuda.cu
  FROM "x[i] = x[i] - decoded(i);" TO "x[i] = x[i] + decoded(i);" TESTS "*QuantizeKernels*")
gradwire_simt_mutant(block_index FILE quantize.cuh SOURCE quantize_cuda.cu
  FROM "record.scales + (mine >> a.shift) * 4" TO "record.scales + warp_index() * 4"
  TESTS "*QuantizeKernels*")
gradwire_simt_mutant(maxima_barrier FILE quantize.cuh SOURCE quantize_cuda.cu
  FROM "    __syncthreads();\n" TO "" TESTS "*QuantizeKernels*")
gradwire_simt_mutant(put_back_unscaled FILE records.cuh SOURCE quantize_cuda.cu
  FROM "decoded(i) / m.scale" TO "decoded(i)" TESTS "*QuantizeKernels*")
gradwire_simt_mutant(part_not_there FILE faults.cuh SOURCE quantize_cuda.cu
  FROM "chunk - part.first_chunk < part.chunks" TO "part.chunks > 0" TESTS "*QuantizeKernels*")
gradwire_simt_mutant(no_decay COMPRESSORS FILE feedback.cuh SOURCE feedback_cuda.cu
  FROM "x[i] += a.decay * e[i];" TO "x[i] += e[i];" TESTS "*FeedbackLaws.DecayForgets*")
gradwire_simt_mutant(ef21_keeps_the_sum COMPRESSORS FILE feedback.cuh SOURCE feedback_cuda.cu
  FROM "e[i] - (x[i] - left[i])" TO "e[i] - x[i]" TESTS "*FeedbackLaws.Ef21*")
gradwire_simt_mutant(basis_kept COMPRESSORS FILE lowrank.cuh SOURCE lowrank_cuda.cu
  FROM "tag.step == basis.step->step && tag.epoch == basis.step->epoch" TO "tag.epoch == 0"
  TESTS "*CudaLowRank.DrawsItsBasis*")
gradwire_simt_mutant(rows_barrier COMPRESSORS FILE lowrank.cuh SOURCE lowrank_cuda.cu
  FROM "__syncthreads();  // p is done with" TO "" TESTS "*CudaLowRank.WritesTheBytes*")
gradwire_simt_mutant(rest_added COMPRESSORS FILE lowrank.cuh SOURCE lowrank_cuda.cu
  FROM "load_element<T>(source.g, e, begin + j) - terms[u]"
  TO "load_element<T>(source.g, e, begin + j) + terms[u]" TESTS "*CudaLowRank.WritesTheBytes*")
gradwire_simt_mutant(kept_however_large COMPRESSORS FILE lowrank.cuh SOURCE lowrank_cuda.cu
  FROM "return fabsf(given) <= kMostKept;" TO "return given == given;"
  TESTS "*CudaLowRank.RefusesAGradient*")
gradwire_simt_mutant(factors_flagged COMPRESSORS FILE lowrank.cuh SOURCE lowrank_cuda.cu
  FROM "flagged || i >= plain" TO "i >= plain" TESTS "*PowerSgd.FlagsWhat*")
gradwire_simt_mutant(dependent_kept COMPRESSORS FILE lowrank_parts.cuh SOURCE lowrank_cuda.cu
  FROM "candidate == 0 ? kDependentShare : kCandidateShare" TO "0.0f"
  TESTS "*CudaLowRank.LearnsFromZeros*")
gradwire_simt_mutant(factor_merge COMPRESSORS FILE lowrank_parts.cuh SOURCE lowrank_cuda.cu
  FROM "total *= scale;" TO "" TESTS "*CudaLowRank.WritesTheBytes*")
gradwire_simt_mutant(first_uncovered COMPRESSORS FILE lowrank_parts.cuh SOURCE lowrank_cuda.cu
  FROM "faults != nullptr && leads" TO "false" TESTS "*PowerSgdOfTwoRounds.Refuses*")
gradwire_simt_mutant(side_of_the_round COMPRESSORS FILE lowrank_parts.cuh SOURCE lowrank_cuda.cu
  FROM "as_first && count > 0" TO "false" TESTS "*CudaLowRank.*TwoRounds*")
gradwire_simt_mutant(overflow_overlooked COMPRESSORS FILE overflow_flag.cuh SOURCE overflow_cuda.cu
  FROM "largest > kLargestFinite" TO "largest > kLargestFinite + 0x80000000u" TESTS "*FlagMerges*")
gradwire_simt_mutant(ef21_overflow_unseen COMPRESSORS FILE feedback.cuh SOURCE feedback_cuda.cu
  FROM "flag_overflow_of(left, a.seal);" TO "flag_overflow_of({}, a.seal);"
  TESTS "*FeedbackLaws.Ef21Flags*")
gradwire_simt_mutant(estimate_parity FILE feedback.cuh SOURCE feedback_cuda.cu
  FROM "as_bytes(a.estimate.get())" TO "as_bytes(a.estimate.first)" TESTS "*EstimateKernels*")
gradwire_simt_mutant(estimate_not_kept FILE feedback.cuh SOURCE feedback_cuda.cu
  FROM "store_floats<float>(as_bytes(a.next.get()), first, a.numel, x);" TO ""
  TESTS "*EstimateKernels*")
gradwire_simt_mutant(estimate_overflow_unseen FILE feedback.cuh SOURCE feedback_cuda.cu
  FROM "atomicOr(a.status, kStatusNonFinite);" TO "" TESTS "*EstimateKernels*")
gradwire_simt_mutant(random_shift FILE random_halves.cuh SOURCE quantize_cuda.cu
  FROM "(skip & 4) != 0 ? w[i + 2]" TO "(skip & 4) != 0 ? w[i + 1]" TESTS "*QuantizeKernels*")
gradwire_simt_mutant(wide_anywhere FILE memory_access.cuh SOURCE cast_cuda.cu
  FROM "kMemory == Memory::kPayload || is_aligned<uint4>(from)" TO "true" TESTS "*CastKernels*")
gradwire_simt_mutant(segment_of_chunk FILE random_halves.cuh SOURCE quantize_cuda.cu
  FROM "warp_index() == 0 ? begin : begin + numel - 1" TO "begin + numel - 1"
  TESTS "*QuantizeKernels*")
gradwire_simt_mutant(parts_behind_table FILE records.cuh SOURCE quantize_cuda.cu
  FROM "part < kTabledParts ? table_[part] : look_up(part)" TO "table_[part % kTabledParts]"
  TESTS "*QuantizeKernels*")
gradwire_simt_mutant(tail_store FILE memory_access.cuh SOURCE cast_cuda.cu
  FROM "if (first + i < numel) {" TO "if (first + i <= numel) {" TESTS "*CastKernels*")
gradwire_simt_mutant(cast_of_the_first FILE cast.cuh SOURCE cast_cuda.cu
  FROM "std::byte* const out = to.get();" TO "std::byte* const out = to.first;" TESTS "*CastKernels*")
gradwire_simt_mutant(cast_in_one_turn FILE cast.cuh SOURCE cast_cuda.cu
  FROM "first < numel; first += all" TO "first < numel; first += all + numel" TESTS "*CastKernels*")
gradwire_simt_mutant(norm_barrier FILE norms.cuh SOURCE norms_cuda.cu
  FROM "__syncthreads();" TO "" TESTS "*NormKernels*")
gradwire_simt_mutant(last_rank_unheard FILE norms.cuh SOURCE norms_cuda.cu
  FROM "part < count; ++part" TO "part + 1 < count; ++part" TESTS "*NormKernels.AddParts*")
gradwire_simt_mutant(norm_order FILE block.cuh SOURCE norms_cuda.cu
  FROM "width = kWarp / 2; width > 0; width /= 2" TO "width = 1; width < kWarp; width *= 2"
  TESTS "*NormKernels*")
gradwire_simt_mutant(lane_order FILE signs.cuh SOURCE signs_cuda.cu
  FROM "x[row * kWarp + lane_index()]) * factor" TO "x[row + lane_index() * rows]) * factor"
  TESTS "*SignKernels*")
gradwire_simt_mutant(sign_of_zero FILE signs.cuh SOURCE signs_cuda.cu
  FROM "x[i] < 0.0f" TO "x[i] <= 0.0f" TESTS "*SignKernels*")
gradwire_simt_mutant(mean_overflow FILE signs.cuh SOURCE signs_cuda.cu
  FROM "if (!mine || fits)" TO "if (!mine)" TESTS "*SignKernels*")
gradwire_simt_mutant(held_barrier FILE signs.cuh SOURCE signs_cuda.cu
  FROM "held + mine);\n    }\n    __syncthreads();" TO "held + mine);\n    }" TESTS "*SignKernels*")
gradwire_simt_mutant(tie_at_cut FILE select_rank.cuh SOURCE select_cuda.cu
  FROM "first + bit <= cut_at" TO "first + bit < cut_at" TESTS "*SelectKernels*")
gradwire_simt_mutant(guess_always_right FILE select_exact.cuh SOURCE select_cuda.cu
  FROM "s.low > kSmallestNonZero ? Refinement::kSearch" TO "s.low < 1 ? Refinement::kSearch"
  TESTS "*SelectKernels*")
gradwire_simt_mutant(search_ties FILE select_rank.cuh SOURCE select_cuda.cu
  FROM "at + 1 == rank" TO "at == rank" TESTS "*SelectKernels.Search*")
gradwire_simt_mutant(highest_bin FILE select.cuh SOURCE select_cuda.cu
  FROM "above >= rank || above + mine < rank" TO "above > rank || above + mine < rank"
  TESTS "*SelectKernels*")
gradwire_simt_mutant(sum_barrier FILE block.cuh SOURCE select_cuda.cu
  FROM "sums[warp_index()] = of_warp;\n  }\n  __syncthreads();" TO "sums[warp_index()] = of_warp;\n  }"
  TESTS "*SelectKernels*")
gradwire_simt_mutant(chunk_ties FILE select_chunks.cuh SOURCE select_cuda.cu
  FROM "ties_before += in_round;" TO "" TESTS "*SelectKernels*")
gradwire_simt_mutant(chunk_counter FILE select_chunks.cuh SOURCE select_cuda.cu
  FROM "turn ^= 1;" TO "" TESTS "*SelectKernels*")
gradwire_simt_mutant(no_rotation FILE select_exact.cuh SOURCE select_cuda.cu
  FROM "i < chunks - first ? first + i : i + first - chunks" TO "i" TESTS "*SelectKernels*")
gradwire_simt_mutant(threshold_slot FILE select_exact.cuh SOURCE select_cuda.cu
  FROM "threshold.parity != 0 ? 0 : 1] = {state" TO "threshold.parity != 0 ? 1 : 0] = {state"
  TESTS "*SelectKernels*")
gradwire_simt_mutant(first_block FILE block.cuh SOURCE select_cuda.cu
  FROM "gridDim.x - 1) == gridDim.x - 1 ? 1 : 0" TO "gridDim.x - 1) == 0 ? 1 : 0"
  TESTS "*ConcurrentBlocks.Find*")
gradwire_simt_mutant(sparse_residual FILE sparse.cuh SOURCE sparse_cuda.cu
  FROM "left = left - (" TO "left = left + ("
  TESTS "*SparseKernels*")
gradwire_simt_mutant(sparse_padding FILE sparse.cuh SOURCE sparse_cuda.cu
  FROM "zero(2 * a.chunks, pad4(2 * a.chunks));" TO ";" TESTS "*SparseKernels*")
gradwire_simt_mutant(zero_barrier FILE sparse_add.cuh SOURCE sparse_add_cuda.cu
  FROM "i);\n    }\n  }\n  __syncthreads();" TO "i);\n    }\n  }"
  TESTS "*SparseSums.Add*")
gradwire_simt_mutant(part_barrier FILE sparse_add.cuh SOURCE sparse_add_cuda.cu
  FROM "    __syncthreads();\n  }\n  uint32_t largest" TO "  }\n  uint32_t largest"
  TESTS "*SparseSums.Add*")
gradwire_simt_mutant(index_order FILE sparse_index.cuh SOURCE sparse_add_cuda.cu
  FROM "middle >> 4 |" TO "middle >> 3 |" TESTS "*SparseSums.Add*")

gradwire_simt_mutant(commit_parity COMPRESSORS FILE device_status.h SOURCE parts_cuda.cu
  FROM "words.parity ^= 1;" TO "" TESTS "*CommitOnTheDevice*")
gradwire_simt_mutant(commit_after_fault COMPRESSORS FILE device_status.h SOURCE parts_cuda.cu
  FROM "words.status == kStatusNonFinite && skip" TO "words.status == kStatusNonFinite"
  TESTS "*ANonFiniteStep*")
gradwire_simt_mutant(region_unchecked COMPRESSORS FILE parts.cuh SOURCE parts_cuda.cu
  FROM "end % kChunk == 0 || end == group" TO "end <= group" TESTS "*NameTheFault*")
gradwire_simt_mutant(slice_offset COMPRESSORS FILE parts.cuh SOURCE parts_cuda.cu
  FROM "(header.first_chunk - part.first_chunk) * record_bytes" TO "header.first_chunk"
  TESTS "*SlicesTile*")
gradwire_simt_mutant(cast_residual COMPRESSORS FILE cast.cuh SOURCE cast_cuda.cu
  FROM "x[i] : x[i] - left[i];" TO "x[i] : x[i] + left[i];" TESTS "*CommitOnTheDevice*")
gradwire_simt_mutant(flag_kept COMPRESSORS FILE seal.cuh SOURCE cast_cuda.cu
  FROM "atomicExch(&seal.call->flags, 0u)" TO "seal.call->flags" TESTS "*FlagWhatIsNotFinite*")

gradwire_simt_mutant(overflow_unflagged COMPRESSORS FILE overflow_flag.cuh SOURCE overflow_cuda.cu
  FROM "flags = flags | std::byte{kFlagNonFinite};" TO "" TESTS "*FlagMerges*")

gradwire_simt_mutant(half_header FILE parts.cuh SOURCE parts_cuda.cu
  FROM "at % kWords * 4, 0u" TO "at % kWords * 2, 0u" TESTS "*PartKernels*")
gradwire_simt_mutant(draw_order COMPRESSORS FILE draw.cuh SOURCE drawn_cuda.cu
  FROM "same && other < step ? other : before" TO "same && other < step ? before : before"
  TESTS "*DrawnOnCuda.DrawsTheElements*")
gradwire_simt_mutant(drawn_unscaled COMPRESSORS FILE drawn.cuh SOURCE drawn_cuda.cu
  FROM "load_float<T>(m.g, at) - decoded / m.scale" TO "load_float<T>(m.g, at) - decoded"
  TESTS "*DrawnOnCuda.WritesEvery*")
gradwire_simt_mutant(draw_kept COMPRESSORS FILE drawn.cuh SOURCE drawn_cuda.cu
  FROM "!drawn || part.variant != draw" TO "!drawn" TESTS "*DrawnOnCuda.DrawsAnew*")
gradwire_simt_mutant(clip_order COMPRESSORS FILE velocity.cuh SOURCE velocity_cuda.cu
  FROM "lane < kClipLanes; ++lane" TO "lane < kClipLanes - 1; ++lane" TESTS "*DgcOnCuda.Clips*")
gradwire_simt_mutant(clip_always COMPRESSORS FILE velocity.cuh SOURCE velocity_cuda.cu
  FROM "norm > limit &&" TO "norm > 0.0 &&" TESTS "*DgcOnCuda.Clips*")
gradwire_simt_mutant(velocity_kept COMPRESSORS FILE velocity.cuh SOURCE velocity_cuda.cu
  FROM "slot.epoch == step->epoch" TO "slot.epoch <= step->epoch" TESTS "*DgcOnCuda.TheVelocityIs*")
gradwire_simt_mutant(sent_unmasked COMPRESSORS FILE velocity.cuh SOURCE velocity_cuda.cu
  FROM "flags != 0; flags &= flags - 1" TO "flags > 0xFFFF; flags &= flags - 1"
  TESTS "*DgcOnCuda.WritesTheBytes*")
gradwire_simt_mutant(average_of_all COMPRESSORS FILE velocity.cuh SOURCE velocity_cuda.cu
  FROM "*a.factor : a.taken" TO "*a.factor : 1.0f" TESTS "*VelocityLaws.AVelocityTakes*")
gradwire_simt_mutant(velocity_for_the_next COMPRESSORS FILE velocity.cuh SOURCE velocity_cuda.cu
  FROM "slots[velocity.committed()] = " TO "slots[1 - velocity.committed()] = "
  TESTS "*VelocityLaws.AVelocityThatIsRestored*")
gradwire_simt_mutant(drawn_unmasked COMPRESSORS FILE drawn.cuh SOURCE drawn_cuda.cu
  FROM "masked[at] = 0.0f" TO "masked[at] *= 0.5f" TESTS "*VelocityLaws.Momentum*")
gradwire_simt_mutant(stage_of_the_step COMPRESSORS FILE select_exact.cuh SOURCE select_cuda.cu
  FROM "s.parts != nullptr  ?" TO "s.parts != nullptr && s.step == nullptr ?"
  TESTS "*DgcOnCuda.AMerge*")

gradwire_simt_mutant(segment_ties COMPRESSORS FILE select_segments.cuh SOURCE select_segments_cuda.cu
  FROM "i <= state.cut_at" TO "i < state.cut_at" TESTS "*TensorTopK*")
gradwire_simt_mutant(block_lanes COMPRESSORS FILE select_blocks.cuh SOURCE select_blocks_cuda.cu
  FROM "width = kNormLanes / 2; width > 0" TO "width = kNormLanes / 2; width > 1"
  TESTS "*BlockTopK*")
gradwire_simt_mutant(block_in_two_chunks COMPRESSORS FILE select_blocks.cuh SOURCE select_blocks_cuda.cu
  FROM "element == here.begin || byte + bit == 0" TO "element == here.begin" TESTS "*BlockTopK*")
gradwire_simt_mutant(block_count_unchecked COMPRESSORS FILE sparse_add.cuh SOURCE sparse_add_cuda.cu
  FROM "bad |= before != count ? 1 : 0;" TO "" TESTS "*BlockTopK.Names*")

gradwire_simt_mutant(step_counted_when_bad OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "words.going != 0 && k < t.item_count" TO "k < t.item_count" TESTS "*CudaOptimizer.Keeps*")
gradwire_simt_mutant(norm_of_values_alone OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "sum += of_pieces[threadIdx.x][piece];" TO "sum += of_pieces[0][piece];"
  TESTS "*CudaOptimizer.HasTheBitsOfTheCpuForAnySize*")
gradwire_simt_mutant(stale_master OPTIMIZERS FILE step_memory.cuh SOURCE step_cuda.cu
  FROM "low[k] = lower_half(w[k]);" TO "low[k] = 0;" TESTS "*CudaOptimizerRow*bfloat16_bfloat16")
gradwire_simt_mutant(pieces_barrier OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "note_finite(t, largest);  // a barrier: all pieces are there"
  TO "(void)largest;" TESTS "*CudaOptimizerRow*lars*")
gradwire_simt_mutant(scale_of_half_a_block OPTIMIZERS FILE step_state.cuh SOURCE step_cuda.cu
  FROM "int width = kWarp / 2; width > 0" TO "int width = kWarp / 4; width > 0"
  TESTS "*CudaOptimizer.HasTheBitsOfTheCpuForAnySize/adamw_state_8bit*")
gradwire_simt_mutant(draws_of_another_step OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "t.steps[i].steps = t.counts[i];" TO "t.steps[i].steps = 0;"
  TESTS "*CudaOptimizer.HasTheBitsOfTheCpuForAnySize/sgd_nesterov_1_state*")
gradwire_simt_mutant(fault_untold OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "t.words->going == 0 || t.words->bad_block != 0" TO "t.words->bad_block != 0"
  TESTS "*CudaSlices.Tell*")
gradwire_simt_mutant(others_unheard OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "(summed && t.slice_sums[2 * t.item_count] != 0.0)" TO "false" TESTS "*CudaSlices.Leave*")
gradwire_simt_mutant(bad_block_kept OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "{ words->bad_block = 0; }" TO "{ words->arrived = 0; }" TESTS "*CudaSlices.Change*")
gradwire_simt_mutant(norm_of_a_slice OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "squares = t.slice_sums[0];" TO "squares = sum_of_items(t);" TESTS "*CudaSlices.Have*grad_norm*")
gradwire_simt_mutant(factor_uncommitted OPTIMIZERS FILE step_onebit.cuh SOURCE step_cuda.cu
  FROM "o.layers[k].factor = o.next_factors[k];" TO "" TESTS "*CudaOneBit.Has*")
gradwire_simt_mutant(frozen_again OPTIMIZERS FILE step_onebit.cuh SOURCE step_cuda.cu
  FROM "frozen && going != kFrozenStep ? 1 : 0" TO "frozen ? 1 : 0" TESTS "*CudaOneBit.Has*")
gradwire_simt_mutant(frozen_draws OPTIMIZERS FILE step_onebit.cuh SOURCE step_cuda.cu
  FROM "t.steps[i].steps = t.counts[i];" TO "" TESTS "*CudaOneBit.Has*")
gradwire_simt_mutant(other_scale_taken OPTIMIZERS FILE step_onebit.cuh SOURCE step_cuda.cu
  FROM "scale != words.prepared_scale" TO "false" TESTS "*CudaOneBit.Keeps*")
gradwire_simt_mutant(prepared_for_ever OPTIMIZERS FILE step_onebit.cuh SOURCE step_cuda.cu
  FROM "      words.prepared = 0;" TO "" TESTS "*CudaOneBit.Keeps*")
gradwire_simt_mutant(momenta_without_a_scale OPTIMIZERS FILE step_onebit.cuh SOURCE step_cuda.cu
  FROM "scales ? factor_of" TO "true ? factor_of" TESTS "*CudaOneBit.ACaptured*")
gradwire_simt_mutant(variance_of_a_block OPTIMIZERS FILE step_freeze.cuh SOURCE step_cuda.cu
  FROM "sum_of_item(item, t.change_squares), item.numel)"
  TO "t.change_squares[blockIdx.x], item.numel)" TESTS "*CudaOneBit.Has*")
gradwire_simt_mutant(codes_barrier OPTIMIZERS FILE step_freeze.cuh SOURCE step_cuda.cu
  FROM "__syncthreads();  // codes and scales are there" TO "" TESTS "*CudaOneBit.Has*")
gradwire_simt_mutant(anchor_forgotten OPTIMIZERS FILE step_outer.cuh SOURCE step_cuda.cu
  FROM "store_floats<float>(as_bytes(item.state[0]), first, item.numel, anchor);" TO ""
  TESTS "*CudaOuter.Has*")
gradwire_simt_mutant(anchor_decayed OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "rule.outer ? 0.0f : f.weight_decay" TO "f.weight_decay" TESTS "*CudaOuter.Has*")
gradwire_simt_mutant(window_barrier OPTIMIZERS FILE step_gradient.cuh SOURCE step_cuda.cu
  FROM "        room_.made[here + threadIdx.x] = 0.0f;\n      }\n      __syncthreads();"
  TO "        room_.made[here + threadIdx.x] = 0.0f;\n      }"
  TESTS "*CudaPayloads.Step*adamw*")
gradwire_simt_mutant(payloads_unrefused OPTIMIZERS FILE step.cuh SOURCE step_cuda.cu
  FROM "(!reads || source->usable == 0)" TO "!reads" TESTS "*CudaPayloadsThatAreWrong*")
gradwire_simt_mutant(rank_barrier OPTIMIZERS READS FILE payload_read.cuh SOURCE step_cuda.cu
  FROM "    __syncthreads();  // the next part adds to the same elements" TO ""
  TESTS "*CudaPayloadsOf.HaveTheBits*")
gradwire_simt_mutant(before_the_window OPTIMIZERS READS FILE payload_read.cuh SOURCE step_cuda.cu
  FROM "if (place < window.count) {" TO "if (static_cast<int32_t>(place) > 0 && place < window.count) {"
  TESTS "*CudaPayloadsOf.HaveTheBits*")
gradwire_simt_mutant(scales_of_a_whole_chunk OPTIMIZERS READS FILE payload_read.cuh SOURCE step_cuda.cu
  FROM "(chunk_numel(s.numel, chunk) + block - 1) >> shift" TO "kChunk >> shift"
  TESTS "*CudaPayloadsOf.HaveTheBits*")
gradwire_simt_mutant(first_of_a_round OPTIMIZERS READS FILE payload_read.cuh SOURCE step_cuda.cu
  FROM "begins[b] + at - before[b]" TO "begins[b] + at - before[0]"
  TESTS "*CudaPayloadsOf.HaveTheBits*")
gradwire_simt_mutant(quotient_of_a_scale FILE elementwise.cuh SOURCE elementwise_cuda.cu
  FROM "by / *factor.on_device" TO "by * *factor.on_device" TESTS "*ElementwiseKernels*")
gradwire_simt_mutant(fill_of_the_first_block FILE elementwise.cuh SOURCE elementwise_cuda.cu
  FROM "       first < numel; first += all) {" TO "       first < numel; first += numel) {"
  TESTS "*ElementwiseKernels.Fill*")
gradwire_simt_mutant(tile_barrier TRAINER FILE math.cuh SOURCE math_cuda.cu
  FROM "    __syncthreads();  // the next terms take their place\n" TO "" TESTS "*NetworkKernels*")
gradwire_simt_mutant(places_not_mirrored TRAINER FILE math.cuh SOURCE math_cuda.cu
  FROM "(kPlaces - 1 - column % kPlaces)" TO "column % kPlaces" TESTS "*NetworkKernels*")
gradwire_simt_mutant(all_of_the_largest TRAINER FILE math.cuh SOURCE math_cuda.cu
  FROM "largest[from] == i % (of.channels * pixels)" TO "largest[from] != ConvBatch::kNone"
  TESTS "*NetworkKernels*")
gradwire_simt_mutant(rows_of_one_pass TRAINER FILE math.cuh SOURCE math_cuda.cu
  FROM "row < batch; row += kThreads" TO "row < batch; row += batch" TESTS "*NetworkKernels*")
gradwire_simt_mutant(add_behind_a_commit FILE elementwise.cuh SOURCE elementwise_cuda.cu
  FROM "step->step != committed ||" TO "" TESTS "*ElementwiseKernels.AddUntil*")

get_property(mutants GLOBAL PROPERTY GRADWIRE_SIMT_MUTANTS)
string(REPLACE ";" "\n" mutants "${mutants}")
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/mutants.txt CONTENT "${mutants}\n")
add_test(NAME simt.a_sample_of_the_mutants_is_caught
         COMMAND ${CMAKE_COMMAND} -D BUILD_DIR=${CMAKE_BINARY_DIR}
                 -D LIST=${CMAKE_CURRENT_BINARY_DIR}/mutants.txt -D SAMPLE=8
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/run_mutants.cmake)
# The longest of all tests: it begins first, where ctest runs several at once.
set_tests_properties(simt.a_sample_of_the_mutants_is_caught PROPERTIES LABELS simt RESOURCE_LOCK build_tree
                     TIMEOUT 900 COST 1000)
