"""Trainings, checks, records and set-ups that the package once answered wrongly.

A test that fails today is an expected failure. Its reason says what must become true for it to pass, and then the mark goes.

01_raw_pixels_before_batchnorm            test_healthy_trainings     test_raw_pixels_before_a_batch_norm
02_warnings_about_rules_nobody_wrote      test_words_of_a_run        test_no_warning_where_nobody_wrote_a_rule
03_basefinetuning_train_bn_false          test_healthy_parameters    test_batch_norms_that_a_fine_tuning_leaves_out
04_output_that_no_loss_uses               test_healthy_parameters    test_an_output_that_no_loss_uses
05_check_crashes_on_sparse                test_robustness            test_a_check_of_sparse_tensors
06_check_fails_graph_attention            test_checks                test_nodes_of_a_graph
07_scheduler_per_batch                    test_faults                test_a_schedule_of_epochs_that_advances_at_every_step
08_sign_of_the_loss                       test_faults                test_a_flipped_sign_of_the_loss
09_check_says_nothing_of_flipped_sign     test_checks                test_a_flipped_sign
10_weight_decay_at_the_threshold          test_faults                test_weight_decay_at_the_threshold
11_zero_inputs_of_an_lstm                 test_faults                test_inputs_that_are_all_zero
12_nan_in_a_batch                         test_faulty_data           test_nan_in_one_batch_of_a_loop
13_dropout_behind_a_layer_of_ones_own     test_faults                test_a_dropout_of_almost_everything
14_zero_grad_between_backward_and_step    test_faults                test_gradients_cleared_between_backward_and_step
15_gradients_repeat_where_they_are_cleared  test_healthy_trainings     test_full_batches_of_a_graph
16_gradients_repeat_mini_batches          test_healthy_trainings     test_bags_of_words
17_no_zero_grad_and_a_dead_output         test_faults                test_shuffled_labels
18_all_gradients_zero_and_healthy         test_faults                test_every_gradient_is_exactly_zero
19_depthwise_conv_inherits_dead_channels  test_healthy_trainings     test_a_depthwise_convolution_behind_dead_channels
20_summary_counts_measured_steps          test_words_of_a_run        test_the_last_line_counts_the_steps_of_the_fit
c1_outputs_differ_fresh_batchnorm         test_checks                test_batch_norms_with_fresh_statistics
c2_time_series_mask                       test_checks                test_a_mask_whose_first_elements_do_not_matter
c3_unused_parameters_of_libraries         test_checks                test_parameters_that_a_task_does_not_use
f1_tokens_repeated_batches                test_faulty_data           test_batches_that_come_twice
h1_pruning_not_in_optimizer               test_healthy_parameters    test_a_pruned_model
h1b_torch_prune                           test_healthy_parameters    test_a_weight_that_is_pruned_by_torch
h2_loss_diverged_small_batches            test_healthy_trainings     test_losses_of_tiny_batches
m1_attention_batch_first_skipped          test_checks                test_attention_over_the_samples
r0_plain_loop_forward_called_backward     test_recorder_words        test_a_loop_without_note_loss
r0b_manual_backward_not_used              test_recorder_words        test_a_loss_whose_backward_is_not_lightnings
r1_class_weights_buffer_false_since       test_recorder_words        test_a_buffer_that_was_infinite_from_the_start
r2_nan_embedding_row_called_update        test_recorder_words        test_a_parameter_that_was_bad_before_the_first_step
r3_user_clipping_called_backward          test_recorder_words        test_a_gradient_that_the_user_changes
r4_nanmean_words                          test_recorder_words        test_a_bad_target_that_the_loss_ignores
r5_optimizer_state_words                  test_recorder_words        test_the_state_of_an_optimizer
r6_earlier_micro_batch_backward           test_recorder_words        test_a_fault_in_an_earlier_micro_batch
r8_scaler_division_by_zero                test_recorder_words        test_a_slope_that_is_infinite_at_any_scale
rob_03                                    test_records_of_strangers  test_replay_calls_no_function_that_a_record_names
rob_04                                    test_robustness            test_the_check_of_the_first_batch_changes_no_weight
rob_06                                    test_robustness            test_a_folder_that_goes_during_a_fit
rob_07                                    test_robustness            test_the_optimizer_of_fabric
rob_09                                    test_records_of_strangers  test_a_damaged_record_is_a_sentence
rob_11                                    test_robustness            test_a_recorder_beside_sharded_parameters
"""
